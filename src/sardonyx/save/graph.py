"""Writes a graph and its bodies as GraphProto."""

from __future__ import annotations

from typing import Final

from sardonyx.base.protobuf_wire import Message
from sardonyx.errors import InternalError, NotImplemented
from sardonyx.graph.dim import Size, lone_name, substitute, symbol
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL, ONNX
from sardonyx.load.model import Declared, Model
from sardonyx.save.names import Names
from sardonyx.save.node import add_annotations, attribute, defaults, node_message, written
from sardonyx.save.older_forms import OlderForm, older_form
from sardonyx.save.since import Versions, is_recent
from sardonyx.save.tensor import External, tensor
from sardonyx.save.types import Dims, value_info

# Field numbers of GraphProto.
_NODE, _NAME, _INITIALIZER, _DOC, _INPUT, _OUTPUT, _VALUE = 1, 2, 5, 10, 11, 12, 13
_IDENTITY: Final = (ONNX, "Identity")


class GraphWriter:
    """Writes one model's graph. Constants of bodies become initializers of the main graph.

    With `spells_out`, attributes that every opset has are written even if they have their defaults.
    """

    def __init__(self, versions: Versions, file: External | None, spells_out: bool = False) -> None:
        self._versions = versions
        self._file = file
        self._spells_out = spells_out
        self._names = Names()
        self._initializers: list[Message] = []

    def main(self, model: Model) -> Message:
        """Return the main graph, with the declared names and types of its inputs and outputs."""
        graph = model.graph
        for name in (*(v.name for v in graph.inputs), *(d.name for d in model.outputs)):
            self._names.reserve(name)
        for value in graph.inputs:
            self._names.assign(value, value.name)
        nodes = self._nodes(graph, [d.name for d in model.outputs])
        for value, const in graph.defaults.items():
            self._initializers.append(tensor(const, value.name, self._file))
        message = _with_nodes(nodes, model.graph_name or "graph")
        for initializer in self._initializers:
            message.message(_INITIALIZER, initializer)
        if model.graph_description:
            message.text(_DOC, model.graph_description)
        self._interface(message, model)
        self._shapes(message, model)
        return message

    def facts(self) -> dict[str, AnyFact | None]:
        """Return the facts of all values that were written, by name."""
        return {name: value.fact for value, name in self._names.values()}

    def _interface(self, message: Message, model: Model) -> None:
        graph = model.graph
        declared = {d.name: d for d in (*model.inputs, *model.overridable)}
        for value in graph.inputs:
            dims = _dims(value, declared[value.name])
            message.message(_INPUT, value_info(value.name, value.fact, dims))
        self._versions.facts(v.fact for v in graph.inputs)
        for value, output in zip(graph.outputs, model.outputs, strict=True):
            fact = output.fact
            if fact is None or (isinstance(fact, Fact) and output.dims is None):
                fact = value.fact  # readers expect a type with a shape
            message.message(_OUTPUT, value_info(output.name, fact, output.dims))
            self._versions.facts((fact,))

    def _shapes(self, message: Message, model: Model) -> None:
        """Write value_info of intermediate values: onnxruntime fuses more where it knows shapes."""
        names = _DimNames(model)
        for node in model.graph.sorted_nodes():
            for value in node.outputs:
                fact = value.fact
                if value.n_exits or not self._names.has(value) or not isinstance(fact, Fact):
                    continue
                if fact.shape is not None:
                    dims = [names.shown(d) for d in fact.shape]
                    message.message(_VALUE, value_info(self._names.of(value), fact, dims))

    def _body(self, graph: Graph) -> Message:
        for value in graph.inputs:
            self._names.of(value)
        exits = [""] * len(graph.outputs)
        message = _with_nodes(self._nodes(graph, exits), graph.name or "body")
        for value in graph.inputs:
            message.message(_INPUT, value_info(self._names.of(value), value.fact))
        for fact, name in zip(graph.zero_trip_facts(), exits, strict=True):
            message.message(_OUTPUT, value_info(name, fact))
        return message

    def _nodes(self, graph: Graph, exits: list[str]) -> list[Message]:
        """The nodes in topological order, then Identity nodes for outputs that no node produces.

        `exits` holds the names that the outputs must have; empty ones are filled in.
        """
        late = self._name_exits(graph, exits)
        nodes = [self._node(n) for n in graph.sorted_nodes()]
        for position, value in late:
            source = self._read(value)
            # An input that is an output of the same name needs no node.
            if source != exits[position]:
                nodes.append(node_message(_IDENTITY, "", [source], [exits[position]]))
                self._versions.op("Identity", value.fact)
        return nodes

    def _name_exits(self, graph: Graph, exits: list[str]) -> list[tuple[int, Value]]:
        """Name the outputs; return those that no node of the graph makes, and duplicates."""
        late = []
        for position, value in enumerate(graph.outputs):
            is_made = value.node is not None and value.node.graph is graph
            if not is_made or self._names.has(value):
                late.append((position, value))
                exits[position] = exits[position] or self._names.unique_name(value.name or "output")
            elif exits[position]:
                self._names.assign(value, exits[position])
            else:
                exits[position] = self._names.of(value)
        return late

    def _node(self, node: Node) -> Message:
        op = node.op
        if op.domain == INTERNAL:
            raise InternalError(f"{op} is an internal op and cannot be saved", node=node)
        if "decoder" in op.attrs:
            raise NotImplemented(
                f"a model with {op} is not saved: its decoder refers to values by name, which "
                "optimizing changes",
                node=node,
                hint="use the model as it is",
            )
        attrs = written(node)
        older = older_form(node, attrs, self._versions.asked)
        form = older or OlderForm(node.inputs, attrs)
        self._versions.node(node, attrs, older is not None)
        shown = form.attrs
        if self._spells_out and older is None:
            old = {k: v for k, v in defaults(node).items() if not is_recent(op.key, k)}
            shown = {**old, **shown}
        inputs = ["" if v is None else self._read(v) for v in form.inputs]
        outputs = [self._names.of(v) if _is_named(node, v) else "" for v in node.outputs]
        attributes = [
            *(attribute(op, k, v, self._body) for k, v in shown.items()),
            *form.extra,
        ]
        message = node_message(op.key, self._names.node(node), inputs, outputs, attributes)
        add_annotations(message, node)
        return message

    def _read(self, value: Value) -> str:
        """Return the name of a value; a constant becomes an initializer on first use."""
        const = value.const
        if const is None or value.node is not None or self._names.has(value):
            return self._names.of(value)
        name, is_new = self._names.of_const(value, const)
        if is_new:
            self._initializers.append(tensor(const, name, self._file))
            self._versions.facts((value.fact,))
        return name


def _with_nodes(nodes: list[Message], name: str) -> Message:
    message = Message()
    for node in nodes:
        message.message(_NODE, node)
    return message.text(_NAME, name)


class _DimNames:
    """Names for sizes of intermediate values, in terms of the declared dims of the inputs."""

    def __init__(self, model: Model) -> None:
        declared = {d.name: d.dims or () for d in (*model.inputs, *model.overridable)}
        self._declared: dict[str, Size] = {}  # by the symbol of inference
        self._names: dict[Size, str] = {}
        for value in model.graph.inputs:
            shape = value.fact.shape if isinstance(value.fact, Fact) else None
            for size, dim in zip(shape or (), declared[value.name], strict=False):
                name = lone_name(size)
                if isinstance(dim, str) and name is not None:
                    self._declared[name] = symbol(dim)
                    self._names[symbol(dim)] = dim

    def shown(self, size: Size) -> int | str | None:
        """Return a number, a name, or a formula; None if its text is the name of another dim."""
        size = substitute(size, self._declared)
        if isinstance(size, int):
            return size
        text = str(size)
        return self._names.get(size, None if text in self._names.values() else text)


def _is_named(node: Node, value: Value) -> bool:
    """Return whether an output gets a name; an unnamed, unused optional output is absent."""
    slot = node.op.outputs[min(value.index, len(node.op.outputs) - 1)]
    return value.is_used or bool(value.name) or not slot.optional


def _dims(value: Value, declared: Declared) -> Dims | None:
    """Return the declared dims of an input, with the sizes that have been fixed since."""
    dims, fact = declared.dims, value.fact
    shape = fact.shape if isinstance(fact, Fact) else None
    if dims is None or shape is None or len(shape) != len(dims):
        return dims
    return [s if isinstance(s, int) else d for s, d in zip(shape, dims, strict=True)]

"""A graph with its bodies as ONNX writes them."""

from __future__ import annotations

from typing import Final

from sardonyx.errors import InternalError, NotImplemented
from sardonyx.graph.dim import Size, lone_name, substitute, symbol
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL, ONNX
from sardonyx.load.model import Declared, Model
from sardonyx.save.names import Names
from sardonyx.save.node import attribute, mark, node_message, written
from sardonyx.save.since import Versions
from sardonyx.save.tensor import External, tensor
from sardonyx.save.types import Dims, value_info
from sardonyx.save.wire import Message

# Field numbers of GraphProto.
_NODE, _NAME, _INITIALIZER, _DOC, _INPUT, _OUTPUT, _VALUE = 1, 2, 5, 10, 11, 12, 13
_IDENTITY: Final = (ONNX, "Identity")


class GraphWriter:
    """Writes one model's graph. Constants of bodies move to the main graph, which they see."""

    def __init__(self, versions: Versions, file: External | None) -> None:
        self._versions = versions
        self._file = file
        self._names = Names()
        self._initializers: list[Message] = []

    def main(self, model: Model) -> Message:
        """The model's graph, with the names and types that it declares to the world."""
        graph = model.graph
        for name in (*(v.name for v in graph.inputs), *(d.name for d in model.outputs)):
            self._names.reserve(name)
        for value in graph.inputs:
            self._names.give(value, value.name)
        nodes = self._nodes(graph, [d.name for d in model.outputs])
        for value, const in graph.defaults.items():
            self._initializers.append(tensor(const, value.name, self._file))
        message = Message()
        for node in nodes:
            message.message(_NODE, node)
        message.text(_NAME, model.graph_name or "graph")
        for initializer in self._initializers:
            message.message(_INITIALIZER, initializer)
        if model.graph_description:
            message.text(_DOC, model.graph_description)
        self._interface(message, model)
        self._shapes(message, model)
        return message

    def _interface(self, message: Message, model: Model) -> None:
        graph = model.graph
        declared = {d.name: d for d in (*model.inputs, *model.overridable)}
        for value in graph.inputs:
            dims = _dims(value, declared[value.name])
            message.message(_INPUT, value_info(value.name, value.fact, dims))
        self._versions.facts(v.fact for v in graph.inputs)
        for value, wanted in zip(graph.outputs, model.outputs, strict=True):
            # A type without a shape is less than readers ask for.
            is_open = wanted.fact is None or (isinstance(wanted.fact, Fact) and wanted.dims is None)
            fact = value.fact if is_open else wanted.fact
            message.message(_OUTPUT, value_info(wanted.name, fact, wanted.dims))
            self._versions.facts((fact,))

    def _shapes(self, message: Message, model: Model) -> None:
        """What is known of the values in between: onnxruntime fuses more where it knows shapes."""
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
        message = Message()
        for node in self._nodes(graph, exits):
            message.message(_NODE, node)
        message.text(_NAME, graph.name or "body")
        for value in graph.inputs:
            message.message(_INPUT, value_info(self._names.of(value), value.fact))
        for fact, name in zip(graph.unrun_facts(), exits, strict=True):
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
            # An input that is an output under its own name is one value, and needs no node.
            if source != exits[position]:
                nodes.append(node_message(_IDENTITY, "", [source], [exits[position]]))
                self._versions.op("Identity", value.fact)
        return nodes

    def _name_exits(self, graph: Graph, exits: list[str]) -> list[tuple[int, Value]]:
        """Names the outputs; returns those that no node here makes, or that are there twice."""
        late = []
        for position, value in enumerate(graph.outputs):
            is_made = value.node is not None and value.node.graph is graph
            if not is_made or self._names.has(value):
                late.append((position, value))
                exits[position] = exits[position] or self._names.fresh(value.name or "output")
            elif exits[position]:
                self._names.give(value, exits[position])
            else:
                exits[position] = self._names.of(value)
        return late

    def _node(self, node: Node) -> Message:
        op = node.op
        if op.domain == INTERNAL:
            raise InternalError(f"{op} is an op of our own, and reached a file", node=node)
        if "decoder" in op.attrs:
            raise NotImplemented(
                f"a model with {op} is not saved: its decoder is known by the names of its values, "
                "which optimizing changes",
                node=node,
                hint="use the model as it is",
            )
        attrs = written(node)
        self._versions.node(node, attrs)
        inputs = ["" if v is None else self._read(v) for v in node.inputs]
        outputs = [self._names.of(v) if _is_named(node, v) else "" for v in node.outputs]
        attributes = [attribute(op, k, v, self._body) for k, v in attrs.items()]
        message = node_message(op.key, self._names.node(node), inputs, outputs, attributes)
        mark(message, node)
        return message

    def _read(self, value: Value) -> str:
        """The name to read a value by; a constant becomes an initializer when it is first read."""
        const = value.const
        if const is None or value.node is not None or self._names.has(value):
            return self._names.of(value)
        name, is_new = self._names.of_const(value, const)
        if is_new:
            self._initializers.append(tensor(const, name, self._file))
            self._versions.facts((value.fact,))
        return name


class _DimNames:
    """Sizes of values in between, in the words of the inputs, where equal names are equal sizes."""

    def __init__(self, model: Model) -> None:
        declared = {d.name: d.dims or () for d in (*model.inputs, *model.overridable)}
        self._joined: dict[str, Size] = {}
        self._names: dict[Size, str] = {}
        for value in model.graph.inputs:
            shape = value.fact.shape if isinstance(value.fact, Fact) else None
            for size, dim in zip(shape or (), declared[value.name], strict=False):
                name = lone_name(size)
                if isinstance(dim, str) and name is not None:
                    self._joined[name] = symbol(dim)
                    self._names[symbol(dim)] = dim

    def shown(self, size: Size) -> int | str | None:
        """A number, a name of the inputs, or a formula; nothing where an input is called so."""
        size = substitute(size, self._joined)
        if isinstance(size, int):
            return size
        text = str(size)
        return self._names.get(size, None if text in self._names.values() else text)


def _is_named(node: Node, value: Value) -> bool:
    """Whether an output is written: an optional one that nobody reads or named is left out."""
    slot = node.op.outputs[min(value.index, len(node.op.outputs) - 1)]
    return value.is_used or bool(value.name) or not slot.optional


def _dims(value: Value, declared: Declared) -> Dims | None:
    """The dims that an input declares, with the sizes that were settled since."""
    dims, fact = declared.dims, value.fact
    shape = fact.shape if isinstance(fact, Fact) else None
    if dims is None or shape is None or len(shape) != len(dims):
        return dims
    return [s if isinstance(s, int) else d for s, d in zip(shape, dims, strict=True)]

"""The parts of a document: model, graph, node, attribute and declared value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.protobuf_wire import Message
from sardonyx.base.records import field, frozen, mutable, replace
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.const import Const
from sardonyx.graph.dtype import DType
from sardonyx.quantization.document import wire

FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS = range(
    1, 9
)  # AttributeProto.AttributeType
GRAPHS: Final = 10
# Fields of AttributeProto.
_NAME, _REALS, _INTS, _TYPE = 1, 7, 8, 20
_FIELDS: Final = {FLOAT: 2, INT: 3, STRING: 4, TENSOR: 5, GRAPH: 6, FLOATS: 7, INTS: 8, STRINGS: 9}


@mutable(eq=False)
class AttributeDoc:
    """One attribute; `raw` is its AttributeProto, but bodies are in `graphs` once they are read."""

    name: str
    type: int
    raw: memoryview
    graphs: list[GraphDoc] = field(default_factory=list)

    @property
    def value(self) -> Any:
        """The value: a number, bytes, a list of these, or the bytes of a TensorProto."""
        wanted = _FIELDS.get(self.type)
        found = [v for n, v, _ in wire.fields(self.raw) if n == wanted]
        if self.type == INTS:
            return [i for v in found for i in wire.numbers(v)]
        if self.type == FLOATS:
            return [f for v in found for f in wire.reals(v)]
        if self.type == STRINGS:
            return [bytes(wire.blob(v)) for v in found]
        if self.type == INT:
            return wire.number(found[-1]) if found else 0
        if self.type == FLOAT:
            return wire.reals(found[-1])[0] if found else 0.0
        if self.type == STRING:
            return bytes(wire.blob(found[-1])) if found else b""
        if self.type == TENSOR and found:
            return wire.blob(found[-1])
        raise InvalidGraph(f"the attribute {self.name} is of a type ({self.type}) that is not read")


def attribute(name: str, value: float | str | bytes | Sequence[int]) -> AttributeDoc:
    """Return a new attribute."""
    message = Message().text(_NAME, name)
    if isinstance(value, (bool, int, np.integer)):
        kind, message = INT, message.number(3, int(value))
    elif isinstance(value, float):
        kind, message = FLOAT, message.real(2, value)
    elif isinstance(value, (str, bytes)):
        encoded = value.encode() if isinstance(value, str) else value
        kind, message = STRING, message.blob(4, encoded)
    else:
        kind, message = INTS, message.numbers(_INTS, value)
    return AttributeDoc(name, kind, memoryview(message.number(_TYPE, kind).joined()))


@mutable(eq=False)
class NodeDoc:
    """A node; `rest` has the fields of its NodeProto that are not listed here."""

    op_type: str
    inputs: list[str]
    outputs: list[str]
    name: str = ""
    domain: str = ""
    attrs: dict[str, AttributeDoc] = field(default_factory=dict)
    rest: bytes = field(default_factory=bytes)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute."""
        found = self.attrs.get(name)
        return default if found is None else found.value

    def set(self, name: str, value: float | str | bytes | Sequence[int]) -> None:
        """Set an attribute."""
        self.attrs[name] = attribute(name, value)

    def input(self, position: int) -> str:
        """Return the name of an input; empty if the node has none at this position."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def copy(self) -> NodeDoc:
        """Return a copy that can be edited, with its bodies."""
        attrs = {
            name: AttributeDoc(attr.name, attr.type, attr.raw, [g.copy() for g in attr.graphs])
            for name, attr in self.attrs.items()
        }
        names = list(self.inputs), list(self.outputs)
        return NodeDoc(self.op_type, *names, self.name, self.domain, attrs, self.rest)

    def bodies(self) -> Iterator[GraphDoc]:
        """Yield the graphs in the node's attributes."""
        for attr in self.attrs.values():
            yield from attr.graphs


@frozen
class ValueDoc:
    """A declared input, output or intermediate value; `dtype` is None unless it is a tensor."""

    name: str
    dtype: DType | None
    shape: tuple[int | str | None, ...] | None
    raw: bytes  # its ValueInfoProto


@mutable(eq=False)
class GraphDoc:
    """A graph; `rest` has the fields of its GraphProto that are not listed here."""

    name: str
    nodes: list[NodeDoc] = field(default_factory=list)
    initializers: dict[str, Const] = field(default_factory=dict)
    inputs: list[ValueDoc] = field(default_factory=list)
    outputs: list[ValueDoc] = field(default_factory=list)
    values: list[ValueDoc] = field(default_factory=list)  # types of intermediate values
    rest: bytes = field(default_factory=bytes)
    typed: set[str] = field(default_factory=set)  # initializers in fields of their types, not raw
    _readers: dict[str, list[NodeDoc]] | None = None  # by input, as of the last change

    def copy(self) -> GraphDoc:
        """Return a copy that can be edited; constants are shared."""
        return GraphDoc(
            self.name,
            [node.copy() for node in self.nodes],
            dict(self.initializers),
            list(self.inputs),
            list(self.outputs),
            list(self.values),
            self.rest,
            set(self.typed),
        )

    def add(self, *nodes: NodeDoc) -> None:
        """Append nodes; `sort` puts them into topological order."""
        self.nodes.extend(nodes)
        if self._readers is not None:
            for node in nodes:
                for name in dict.fromkeys(node.inputs):
                    self._readers.setdefault(name, []).append(node)

    def set_nodes(self, nodes: Iterable[NodeDoc]) -> None:
        """Replace all nodes."""
        self.nodes, self._readers = list(nodes), None

    def readers(self, name: str) -> list[NodeDoc]:
        """Return the nodes of this graph, not of bodies, that read a value."""
        if self._readers is None:
            self._readers = {}
            for node in self.nodes:
                for value in dict.fromkeys(node.inputs):
                    self._readers.setdefault(value, []).append(node)
        return list(self._readers.get(name, ()))

    def replace_input(self, old: str, new: str, only: Collection[str] | None = None) -> None:
        """Make readers of a value read another; `only` has the names of the nodes that change."""
        for node in self.readers(old):
            if only is None or node.name in only:
                self.replace_node_input(node, old, new)

    def replace_node_input(self, node: NodeDoc, old: str, new: str) -> None:
        """Make one node read `new` wherever it reads `old`."""
        self.readers(old)
        assert self._readers is not None
        node.inputs = [new if name == old else name for name in node.inputs]
        kept = [n for n in self._readers.get(old, ()) if n is not node]
        self._readers[old] = kept
        if node not in self._readers.setdefault(new, []):
            self._readers[new].append(node)

    def replace_output(self, old: str, new: str) -> None:
        """Rename a value where it is made."""
        for node in self.nodes:
            if old in node.outputs:
                node.outputs = [new if name == old else name for name in node.outputs]

    def remove(self, nodes: Iterable[NodeDoc]) -> None:
        """Remove nodes."""
        removed = {id(node) for node in nodes}
        self.set_nodes(n for n in self.nodes if id(n) not in removed)

    def is_output(self, name: str) -> bool:
        return any(o.name == name for o in self.outputs)

    def is_input(self, name: str) -> bool:
        return any(i.name == name for i in self.inputs)

    def constant(self, name: str) -> Const | None:
        """Return an initializer."""
        return self.initializers.get(name)

    def remove_initializer(self, name: str) -> None:
        """Remove an initializer, also from the inputs."""
        del self.initializers[name]
        self.inputs = [i for i in self.inputs if i.name != name]

    def captures(self) -> set[str]:
        """Return the names of values that the graph and its bodies read and do not make."""
        read = {name for node in self.nodes for name in node.inputs if name}
        read.update(o.name for o in self.outputs)
        for node in self.nodes:
            for body in node.bodies():
                read |= body.captures()
        made = {name for node in self.nodes for name in node.outputs}
        return read - made - self.initializers.keys() - {i.name for i in self.inputs}

    def body_reads(self) -> set[str]:
        """Return the names of values that bodies of this graph's nodes read of what is outside."""
        bodies = (body for node in self.nodes for body in node.bodies())
        return {name for body in bodies for name in body.captures()}

    def drop_unused_initializers(self) -> set[str]:
        """Remove initializers that nothing reads; return the names that nothing makes."""
        read = {name for node in self.nodes for name in node.inputs if name}
        read.update(o.name for o in self.outputs)
        for node in self.nodes:
            for body in node.bodies():
                read |= body.drop_unused_initializers()
        for name in [n for n in self.initializers if n not in read]:
            self.remove_initializer(name)
        made = {name for node in self.nodes for name in node.outputs}
        return read - made - self.initializers.keys() - {i.name for i in self.inputs}

    def sort(self) -> None:
        """Put the nodes into topological order, those of bodies included.

        It is breadth-first, and begins with the readers of inputs and initializers in the order of
        their names, as in the models of onnxruntime's tools.
        """
        self.set_nodes(self._breadth_first())
        for node in self.nodes:
            for body in node.bodies():
                body.sort()

    def _breadth_first(self) -> list[NodeDoc]:
        """Return the nodes in breadth-first topological order; a cycle is an error."""
        makers = {name for node in self.nodes for name in node.outputs if name}
        sources = self.initializers.keys() | {i.name for i in self.inputs}
        readers: dict[str, list[NodeDoc]] = {}
        missing: dict[int, int] = {}
        for node in self.nodes:
            needed = [n for n in node.inputs if n in sources or n in makers]
            for body in node.bodies():
                needed.extend(sorted(body.captures() & makers))
            missing[id(node)] = len(needed)
            for name in needed:
                readers.setdefault(name, []).append(node)
        order = [node for node in self.nodes if not missing[id(node)]]

        def provide(name: str) -> None:
            for reader in readers.get(name, ()):
                missing[id(reader)] -= 1
                if not missing[id(reader)]:
                    order.append(reader)

        for name in sorted(sources - makers):
            provide(name)
        for node in order:  # grows while it is read
            for name in node.outputs:
                provide(name)
        if len(order) < len(self.nodes):
            stuck = next(node for node in self.nodes if missing[id(node)])
            raise InvalidGraph(f"the graph has a cycle through {stuck.outputs}")
        return order

    def family(self) -> Iterator[GraphDoc]:
        """Yield the graph and all bodies in it."""
        yield self
        for node in self.nodes:
            for body in node.bodies():
                yield from body.family()


@mutable(eq=False)
class ModelDoc:
    """A model; `rest` has the fields of its ModelProto that are not listed here."""

    graph: GraphDoc
    ir_version: int
    opsets: dict[str, int]
    metadata: dict[str, str] = field(default_factory=dict)
    producer: tuple[str, str] = ("", "")  # name and version
    rest: bytes = field(default_factory=bytes)
    functions: frozenset[tuple[str, str]] = field(default_factory=frozenset)  # domain and name
    folder: str | None = None  # of the model file
    # What the document views, such as a mapped file.
    owner: object | None = None
    decode_tensor: Callable[[memoryview], Const] | None = None

    def copy(self) -> ModelDoc:
        """Return a copy that can be edited; constants are shared."""
        opsets, metadata = dict(self.opsets), dict(self.metadata)
        return replace(self, graph=self.graph.copy(), opsets=opsets, metadata=metadata)

    @property
    def opset(self) -> int:
        """The opset of the standard domain."""
        if "" not in self.opsets:
            raise InvalidArgument(
                "Failed to find proper ai.onnx domain: the model imports no opset"
            )
        return self.opsets[""]

"""Writes models in onnxruntime's .ort format: the saved ModelProto, as tables of a FlatBuffer.

onnxruntime infers nothing when it loads such a file, so it states what an ONNX file leaves open:
the type of every value, the version of every op, the edges between nodes, and which arguments
determine the types of each kernel. The fields of a table are in the order of the schema, ort.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sardonyx._native import (
    AttributeRecord,
    GraphRecord,
    ModelRecord,
    NodeRecord,
    SparseTensorRecord,
    TensorRecord,
    ValueInfoRecord,
)
from sardonyx.base.flatbuffer_writer import Append, Field, Scalar, file, table, tables, text, vector
from sardonyx.errors import InternalError, NotImplemented
from sardonyx.graph.const import Const
from sardonyx.graph.dtype import by_onnx
from sardonyx.graph.fact import AnyFact, Fact, MapFact, SequenceFact
from sardonyx.load.types import declared_dims, fact_of
from sardonyx.ops import lookup
from sardonyx.save.ort_schemas import OpVersion, schema_of
from sardonyx.save.tensor import content, stored_bytes
from sardonyx.save.types import Dims

VERSION: Final = "6"
IDENTIFIER: Final = b"ORTM"
_ALIGN: Final = 64  # bytes, of tensors
_DIM_VALUE, _DIM_PARAM = 1, 2
_TENSOR, _SEQUENCE, _MAP = 1, 2, 3
Edge = tuple[int, int, int]  # the other node, its output or ours, our input or its


class Weights:
    """Tensors that the ModelProto refers to by number instead of holding their bytes."""

    def __init__(self) -> None:
        self._consts: list[Const] = []

    @property
    def size(self) -> int:
        """The bytes of all tensors."""
        return sum(map(stored_bytes, self._consts))

    def entries(self, const: Const, name: str) -> dict[str, object] | None:
        """Return the external data entries of a tensor, whose offset is its number here."""
        self._consts.append(const)
        return {"location": "weights", "offset": len(self._consts) - 1}

    def read(self, record: TensorRecord) -> bytes:
        """Return the bytes of a tensor."""
        number = int(dict(record.external_data)["offset"])
        return b"".join(content(self._consts[number]).pieces())


def ort_file(
    record: ModelRecord, weights: Weights, facts: Mapping[str, AnyFact | None]
) -> bytearray:
    """Return the bytes of the file; `facts` has the types of values that nodes make."""
    if record.graph is None:
        raise InternalError("a model without a graph is saved")
    return file(_Writer(record, weights, facts).session(record.graph), IDENTIFIER)


class _Writer:
    """Writes the tables of one model."""

    def __init__(
        self, record: ModelRecord, weights: Weights, facts: Mapping[str, AnyFact | None]
    ) -> None:
        self._record = record
        self._weights = weights
        self._opsets = dict(record.opset_imports)
        self._types: dict[str, Append | None] = {n: _type(f) for n, f in facts.items() if f}
        self._schemas: dict[str, OpVersion] = {}

    def session(self, graph: GraphRecord) -> Append:
        record = self._record
        opsets = [table([text(d), Scalar("<q", v)]) for d, v in record.opset_imports]
        metadata = [table([text(k), text(v)]) for k, v in record.metadata]
        fields: list[Field] = [Scalar("<q", record.ir_version), tables(opsets)]
        fields += [text(record.producer_name), text(record.producer_version), text(record.domain)]
        fields += [Scalar("<q", record.model_version), text(record.doc_string), self._graph(graph)]
        fields += [text(graph.doc_string), tables(metadata)]
        # After the graph, which collects the schemas of its ops.
        resolver = table([tables([_kernel_types(s) for _, s in sorted(self._schemas.items())])])
        return table([text(VERSION), table(fields), None, resolver])

    def _graph(self, graph: GraphRecord) -> Append:
        for info in (*graph.inputs, *graph.outputs):
            self._declare(info)
        for tensor in graph.initializers:
            self._types[tensor.name] = _tensor_type(tensor.data_type, tensor.dims)
        nodes = [self._node(i, node) for i, node in enumerate(graph.nodes)]
        names = dict.fromkeys(_names(graph))
        values = [table([text(n), None, self._types.get(n)]) for n in names]
        fields: list[Field] = [tables([self._tensor(t) for t in graph.initializers])]
        fields += [tables(values), tables(nodes), Scalar("<I", len(nodes))]
        fields += [tables(_edges(graph.nodes))]
        fields += [_texts([i.name for i in graph.inputs]), _texts([o.name for o in graph.outputs])]
        fields.append(tables([self._sparse(s) for s in graph.sparse_initializers]))
        return table(fields)

    def _declare(self, info: ValueInfoRecord) -> None:
        fact = fact_of(info.type)
        if fact is not None:
            self._types[info.name] = _type(fact, declared_dims(info.type))

    def _node(self, index: int, node: NodeRecord) -> Append:
        schema = schema_of(node.domain, node.op_type, self._opsets[node.domain])
        self._schemas[schema.key] = schema
        implicit = captures(node)
        fields: list[Field] = [text(node.name), None, text(node.domain), Scalar("<i", schema.since)]
        fields += [Scalar("<I", index), text(node.op_type), Scalar("<i", 0), text("")]
        fields += [_texts(node.inputs), _texts(node.outputs)]
        fields += [tables([self._attribute(a) for a in node.attributes])]
        fields += [_numbers("i", _argument_counts(node)), _texts(implicit)]
        return table(fields)

    def _attribute(self, attribute: AttributeRecord) -> Append:
        value: Any = attribute.value
        fields: list[Field] = [text(attribute.name), None, Scalar("<i", attribute.type)]
        slots: dict[int, Callable[[], Field]] = {
            1: lambda: Scalar("<f", value or 0.0),
            2: lambda: Scalar("<q", value or 0),
            3: lambda: _bytes(value or b""),
            4: lambda: self._tensor(value),
            5: lambda: self._graph(value),
            6: lambda: _numbers("f", value.tolist()),
            7: lambda: _numbers("q", value.tolist()),
            8: lambda: tables([_bytes(v) for v in value]),
            9: lambda: tables([self._tensor(v) for v in value]),
            10: lambda: tables([self._graph(v) for v in value]),
        }
        if attribute.type not in slots:
            raise NotImplemented(
                f"the .ort format has no attributes of the type of {attribute.name}",
                hint="save the model as an .onnx file",
            )
        return table([*fields, *[None] * (attribute.type - 1), slots[attribute.type]()])

    def _tensor(self, tensor: TensorRecord) -> Append:
        fields: list[Field] = [text(tensor.name), None, _numbers("q", tensor.dims)]
        fields.append(Scalar("<i", tensor.data_type))
        if tensor.storage == "string":
            return table([*fields, None, tables([_bytes(s) for s in tensor.strings])])
        raw = self._weights.read(tensor) if tensor.location else b""
        return table([*fields, vector(raw, len(raw), _ALIGN)])

    def _sparse(self, sparse: SparseTensorRecord) -> Append:
        parts: list[Field] = [self._tensor(sparse.values), self._tensor(sparse.indices)]
        return table([*parts, _numbers("q", sparse.dims)])


def captures(node: NodeRecord) -> list[str]:
    """Return the values from outside that the bodies of a node read."""
    found: dict[str, None] = {}
    for attribute in node.attributes if node.has_bodies else ():
        if isinstance(attribute.value, GraphRecord):
            graph = attribute.value
            made = {i.name for i in graph.inputs} | {t.name for t in graph.initializers}
            made.update(name for inner in graph.nodes for name in inner.outputs)
            found.update((name, None) for name in _names(graph) if name and name not in made)
    return list(found)


def _names(graph: GraphRecord) -> Iterator[str]:
    """Yield the names of all values that a graph mentions, those that bodies capture included."""
    yield from (info.name for info in graph.inputs)
    yield from (tensor.name for tensor in graph.initializers)
    for node in graph.nodes:
        yield from node.inputs
        yield from node.outputs
        yield from captures(node)
    yield from (info.name for info in graph.outputs)


def _edges(nodes: Sequence[NodeRecord]) -> list[Append]:
    """Return the edges of each node, from the outputs of others and to their inputs."""
    makers = {n: (i, k) for i, node in enumerate(nodes) for k, n in enumerate(node.outputs) if n}
    into: list[list[Edge]] = [[] for _ in nodes]
    out: list[list[Edge]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for k, name in enumerate((*node.inputs, *captures(node))):
            if name in makers:
                maker, output = makers[name]
                into[i].append((maker, output, k))
                out[maker].append((i, output, k))
    return [
        table([Scalar("<I", i), _edge_ends(into[i]), _edge_ends(out[i])]) for i in range(len(nodes))
    ]


def _edge_ends(edges: Sequence[Edge]) -> Append:
    return vector(b"".join(struct.pack("<Iii", *edge) for edge in edges), len(edges))


def _argument_counts(node: NodeRecord) -> list[int]:
    """Return the number of inputs of each parameter of the op: one, or any number of the last."""
    op = lookup(node.domain, node.op_type)
    n_inputs = len(node.inputs)
    if op is None or not op.inputs or not op.inputs[-1].variadic:
        return [1] * n_inputs
    n_single = min(len(op.inputs) - 1, n_inputs)
    return [1] * n_single + [n_inputs - n_single]


def _kernel_types(schema: OpVersion) -> Append:
    entries = [
        table([text(variable), tables([_argument(*argument) for argument in arguments])])
        for variable, arguments in sorted(schema.types.items())
    ]
    return table([text(schema.key), tables(entries)])


def _argument(is_output: bool, position: int) -> Append:
    return table([Scalar("<b", is_output), Scalar("<I", position)])


def _type(fact: AnyFact, dims: Dims | None = None) -> Append | None:
    """Return a TypeInfo; None if the elements of a sequence or map are not known."""
    match fact:
        case Fact():
            shown = fact.shape if dims is None else dims
            return _tensor_type(fact.dtype.onnx, shown)
        case SequenceFact():
            elem = None if fact.elem is None else _type(fact.elem, dims)
            return None if elem is None else _type_info(_SEQUENCE, table([elem]))
        case MapFact():
            value = None if fact.value is None else _type(fact.value)
            key = Scalar("<i", fact.key.onnx)
            return None if value is None else _type_info(_MAP, table([key, value]))
    raise NotImplemented(
        f"the .ort format has no values of the type {fact}", hint="save it as an .onnx file"
    )


def _type_info(kind: int, value: Append) -> Append:
    return table([None, Scalar("<B", kind), value])


def _tensor_type(data_type: int, dims: Sequence[Any] | None) -> Append:
    if by_onnx(data_type) is None:
        raise InternalError(f"a tensor of the element type {data_type} is saved")
    shape = None if dims is None else table([tables([table([_dim(d)]) for d in dims])])
    return _type_info(_TENSOR, table([Scalar("<i", data_type), shape]))


def _dim(dim: Any) -> Append:
    """A dim; symbols of inference, which no other file knows, are unknown sizes."""
    if isinstance(dim, str):
        return table([Scalar("<b", _DIM_PARAM), None, text(dim)])
    if isinstance(dim, int) and dim >= 0:
        return table([Scalar("<b", _DIM_VALUE), Scalar("<q", dim)])
    return table([])


def _bytes(raw: bytes) -> Append:
    return vector(raw + b"\0", len(raw))


def _texts(names: Sequence[str]) -> Append:
    return tables([text(name) for name in names])


def _numbers(letter: str, values: Sequence[float]) -> Append:
    raw = struct.pack(f"<{len(values)}{letter}", *values)
    return vector(raw, len(values), struct.calcsize(letter))

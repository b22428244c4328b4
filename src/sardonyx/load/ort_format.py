"""Reads models in onnxruntime's .ort format: a FlatBuffer, translated to an ONNX ModelProto.

The enumerations number the fields of the tables in the order of onnxruntime's schema, ort.fbs. The
ModelProto refers to larger tensors as external data of the .ort file itself, so weights stay in
the mapped file. Everything after this module sees an ONNX model.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from sardonyx.base.flatbuffer import FlatBuffer, Table
from sardonyx.base.protobuf_wire import Message
from sardonyx.errors import NotImplemented

IDENTIFIER: Final = b"ORTM"
VERSIONS: Final = range(1, 7)  # later versions only added fields, which are optional
MAX_DEPTH: Final = 64  # of nested bodies and types
EMBEDDED_BYTES: Final = 1024  # smaller tensors are copied into the ModelProto

_TENSOR_TYPE, _SEQUENCE_TYPE, _MAP_TYPE = 1, 2, 3  # members of the union TypeInfoValue
_DIM_VALUE, _DIM_PARAM = 1, 2  # members of the enumeration DimensionValueType
_FUSED: Final = 1  # a member of the enumeration NodeType


class _Session(IntEnum):
    VERSION, MODEL = range(2)


class _Model(IntEnum):
    IR, OPSETS, PRODUCER, PRODUCER_VERSION, DOMAIN, VERSION, DOC, GRAPH, GRAPH_DOC, METADATA = (
        range(10)
    )


class _Graph(IntEnum):
    INITIALIZERS, VALUES, NODES, MAX_INDEX, EDGES, INPUTS, OUTPUTS, SPARSE_INITIALIZERS = range(8)


class _Node(IntEnum):
    NAME, DOC, DOMAIN, SINCE, INDEX, OP_TYPE, KIND, PROVIDER, INPUTS, OUTPUTS, ATTRIBUTES = range(
        11
    )


class _Attribute(IntEnum):
    NAME, DOC, TYPE, FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS, GRAPHS = (
        range(13)
    )


class _Tensor(IntEnum):
    NAME, DOC, DIMS, TYPE, RAW, STRINGS, EXTERNAL_OFFSET = range(7)


class _Sparse(IntEnum):
    VALUES, INDICES, DIMS = range(3)


class _Value(IntEnum):
    NAME, DOC, TYPE = range(3)


class _Type(IntEnum):
    DENOTATION, KIND, CONTENT = range(3)


class _Dim(IntEnum):
    KIND, VALUE, PARAM = range(3)


def onnx_bytes(data: memoryview, name: str, location: str) -> bytes:
    """Return a model in the .ort format as a ModelProto.

    Tensors in the file are external data at `location`. Errors call the file by its `name`.
    """
    return _Reader(FlatBuffer(data, name, "model in the .ort format"), name, location).model()


class _Reader:
    """Translates the tables of one file."""

    def __init__(self, buffer: FlatBuffer, name: str, location: str) -> None:
        self._buffer = buffer
        self._name = name
        self._location = location.encode()

    def model(self) -> bytes:
        session = self._buffer.root(IDENTIFIER)
        version = session.text(_Session.VERSION)
        if version not in map(str, VERSIONS):
            raise NotImplemented(
                f"{self._name} has version {version!r} of the .ort format, and {VERSIONS[0]} to "
                f"{VERSIONS[-1]} are known",
                hint="convert the ONNX model again, with onnxruntime 1.31 or older",
            )
        table = self._table(session, _Session.MODEL, "model")
        message = Message().number(1, table.int64(_Model.IR))
        for field, slot in (
            (2, _Model.PRODUCER), (3, _Model.PRODUCER_VERSION), (4, _Model.DOMAIN), (6, _Model.DOC),
        ):  # fmt: skip
            message.blob(field, table.string(slot))
        message.number(5, table.int64(_Model.VERSION))
        graph = self._graph(self._table(table, _Model.GRAPH, "graph"), 0)
        message.message(7, graph.blob(10, table.string(_Model.GRAPH_DOC)))
        for opset in table.tables(_Model.OPSETS):
            message.message(8, Message().blob(1, opset.string(0)).number(2, opset.int64(1)))
        for entry in table.tables(_Model.METADATA):
            message.message(14, Message().blob(1, entry.string(0)).blob(2, entry.string(1)))
        return message.joined()

    def _table(self, parent: Table, slot: int, what: str) -> Table:
        table = parent.table(slot)
        if table is None:
            raise self._buffer.error(f"it has no {what}")
        return table

    def _graph(self, table: Table, depth: int) -> Message:
        if depth > MAX_DEPTH:
            raise self._buffer.error(f"bodies are nested more than {MAX_DEPTH} deep")
        message = Message()
        for node in table.tables(_Graph.NODES):
            message.message(1, self._node(node, depth))
        for tensor in table.tables(_Graph.INITIALIZERS):
            message.message(5, self._tensor(tensor))
        types = {value.string(_Value.NAME): value for value in table.tables(_Graph.VALUES)}
        for field, slot in ((11, _Graph.INPUTS), (12, _Graph.OUTPUTS)):
            for name in table.strings(slot):
                message.message(field, self._value(name, types.get(name)))
        for sparse in table.tables(_Graph.SPARSE_INITIALIZERS):
            message.message(15, self._sparse(sparse))
        return message

    def _node(self, table: Table, depth: int) -> Message:
        if table.int32(_Node.KIND) == _FUSED:
            provider = table.string(_Node.PROVIDER).decode("utf-8", "replace")
            raise NotImplemented(
                f"{self._name} has a node that {provider or 'a provider'} compiled for one device",
                hint="convert the ONNX model without that provider",
            )
        message = Message()
        for field, slot in ((1, _Node.INPUTS), (2, _Node.OUTPUTS)):
            for name in table.strings(slot):
                message.blob(field, name)
        for field, slot in (
            (3, _Node.NAME), (4, _Node.OP_TYPE), (6, _Node.DOC), (7, _Node.DOMAIN),
        ):  # fmt: skip
            message.blob(field, table.string(slot))
        for attribute in table.tables(_Node.ATTRIBUTES):
            message.message(5, self._attribute(attribute, depth))
        return message

    def _attribute(self, table: Table, depth: int) -> Message:
        kind = table.int32(_Attribute.TYPE)  # with the values of AttributeProto.AttributeType
        message = Message().blob(1, table.string(_Attribute.NAME)).number(20, kind)
        match kind:
            case 1:
                message.real(2, table.float32(_Attribute.FLOAT))
            case 2:
                message.number(3, table.int64(_Attribute.INT))
            case 3:
                message.blob(4, table.string(_Attribute.STRING))
            case 4:
                message.message(5, self._tensor(self._table(table, _Attribute.TENSOR, "tensor")))
            case 5:
                body = self._graph(self._table(table, _Attribute.GRAPH, "body"), depth + 1)
                message.message(6, body)
            case 6:  # packed floats, as in protobuf
                message.blob(7, self._bytes(*table.span(_Attribute.FLOATS, 4)))
            case 7:
                message.numbers(8, table.int64s(_Attribute.INTS))
            case 8:
                for text in table.strings(_Attribute.STRINGS):
                    message.blob(9, text)
            case 9:
                for tensor in table.tables(_Attribute.TENSORS):
                    message.message(10, self._tensor(tensor))
            case 10:
                for graph in table.tables(_Attribute.GRAPHS):
                    message.message(11, self._graph(graph, depth + 1))
            case _:
                raise self._buffer.error(f"an attribute has the type {kind}")
        return message

    def _tensor(self, table: Table) -> Message:
        message = Message().numbers(1, table.int64s(_Tensor.DIMS))
        message.number(2, table.int32(_Tensor.TYPE)).blob(8, table.string(_Tensor.NAME))
        if table.int64(_Tensor.EXTERNAL_OFFSET, -1) >= 0:
            raise self._buffer.error("a tensor is in a data file, which only checkpoints have")
        for text in table.strings(_Tensor.STRINGS):
            message.blob(6, text)
        offset, length = table.span(_Tensor.RAW)
        if length < EMBEDDED_BYTES:
            return message.blob(9, self._bytes(offset, length)) if length else message
        for key, value in (
            (b"location", self._location),
            (b"offset", b"%d" % offset),
            (b"length", b"%d" % length),
        ):
            message.message(13, Message().blob(1, key).blob(2, value))
        return message.number(14, 1)

    def _sparse(self, table: Table) -> Message:
        values = self._tensor(self._table(table, _Sparse.VALUES, "values of a sparse tensor"))
        indices = self._tensor(self._table(table, _Sparse.INDICES, "indices of a sparse tensor"))
        message = Message().message(1, values).message(2, indices)
        return message.numbers(3, table.int64s(_Sparse.DIMS))

    def _value(self, name: bytes, table: Table | None) -> Message:
        message = Message().blob(1, name)
        kind = None if table is None else table.table(_Value.TYPE)
        return message if kind is None else message.message(2, self._type(kind, 0))

    def _type(self, table: Table, depth: int) -> Message:
        if depth > MAX_DEPTH:
            raise self._buffer.error(f"types are nested more than {MAX_DEPTH} deep")
        kind, content = table.uint8(_Type.KIND), table.table(_Type.CONTENT)
        message = Message()
        if kind == 0 or content is None:
            return message
        if kind == _TENSOR_TYPE:
            return message.message(1, self._tensor_type(content))
        if kind == _SEQUENCE_TYPE:
            elem = self._type(self._table(content, 0, "type of a sequence"), depth + 1)
            return message.message(4, Message().message(1, elem))
        if kind == _MAP_TYPE:
            value = self._type(self._table(content, 1, "type of a map"), depth + 1)
            return message.message(5, Message().number(1, content.int32(0)).message(2, value))
        raise self._buffer.error(f"a value has a type of kind {kind}")

    def _tensor_type(self, table: Table) -> Message:
        message, shape = Message().number(1, table.int32(0)), table.table(1)
        return message if shape is None else message.message(2, _shape(shape.tables(0)))

    def _bytes(self, offset: int, length: int) -> bytes:
        return bytes(self._buffer.data[offset : offset + length])


def _shape(dims: Iterable[Table]) -> Message:
    message = Message()
    for dim in dims:
        out, value = Message(), dim.table(0)
        if value is not None and value.uint8(_Dim.KIND) == _DIM_VALUE:
            out.number(1, value.int64(_Dim.VALUE))
        elif value is not None and value.uint8(_Dim.KIND) == _DIM_PARAM:
            out.blob(2, value.string(_Dim.PARAM))
        message.message(1, out.blob(3, dim.string(1)))
    return message

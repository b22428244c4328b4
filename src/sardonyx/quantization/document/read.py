"""Reads a model file into a document."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sardonyx._native import DecodeError, decode_tensor
from sardonyx.errors import InvalidProtobuf
from sardonyx.graph.const import Const, Source
from sardonyx.graph.dtype import by_onnx
from sardonyx.load import read_record
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.load.tensor import Tensors
from sardonyx.quantization.document import wire
from sardonyx.quantization.document.model import (
    GRAPH,
    GRAPHS,
    AttributeDoc,
    GraphDoc,
    ModelDoc,
    NodeDoc,
    ValueDoc,
)

# Fields of AttributeProto that hold a value, with the type they imply.
_TYPES: Final = {
    2: 1,
    3: 2,
    4: 3,
    5: 4,
    6: 5,
    7: 6,
    8: 7,
    9: 8,
    10: 9,
    11: 10,
    22: 11,
    23: 12,
    14: 13,
}


def read_document(model: Any) -> ModelDoc:
    """Read a model: a path, bytes, any buffer, a binary file or an onnx.ModelProto."""
    data = model if isinstance(model, ModelBytes) else read_model(model)
    read_record(data)  # its errors name the file and its likely format
    const = partial(_const, data)
    graph = GraphDoc("")
    document = ModelDoc(graph, 0, {}, folder=data.files.folder, owner=data, decode_tensor=const)
    functions: set[tuple[str, str]] = set()
    rest = bytearray()
    for number, value, raw in wire.fields(data.source.data):
        if number == 1:
            document.ir_version = wire.number(value)
        elif number in (2, 3):
            name, version = document.producer
            shown = wire.text(value)
            document.producer = (shown, version) if number == 2 else (name, shown)
        elif number == 7:
            document.graph = _graph(wire.blob(value), const)
        elif number == 8:
            domain, opset = _opset(wire.blob(value))
            document.opsets[domain] = max(opset, document.opsets.get(domain, 0))
        elif number == 14:
            key, text = _pair(wire.blob(value))
            document.metadata[key] = text
        else:
            if number == 25:
                functions.add(_function(wire.blob(value)))
            rest += raw
    document.rest, document.functions = bytes(rest), frozenset(functions)
    return document


def _const(data: ModelBytes, raw: memoryview) -> Const:
    """Return the constant of a TensorProto, which refers to its bytes."""
    try:
        record = decode_tensor(raw)
    except DecodeError as error:
        raise InvalidProtobuf(f"a tensor of {data.source.name} is damaged: {error}") from None
    whole = data.source
    part = Source(raw, whole.name, is_fixed=whole.is_fixed, stamp=whole.stamp)
    return Tensors(part, data.files, {}).const(record)


def _graph(data: memoryview, const: partial[Const]) -> GraphDoc:
    graph, rest = GraphDoc(""), bytearray()
    lists = {11: graph.inputs, 12: graph.outputs, 13: graph.values}
    for number, value, raw in wire.fields(data):
        if number == 1:
            graph.nodes.append(_node(wire.blob(value), const))
        elif number == 2:
            graph.name = wire.text(value)
        elif number == 5:
            tensor = wire.blob(value)
            graph.initializers[_field_text(tensor, 8)] = const(tensor)
        elif number in lists:
            lists[number].append(value_of(bytes(wire.blob(value))))
        else:
            rest += raw
    graph.rest = bytes(rest)
    return graph


def _node(data: memoryview, const: partial[Const]) -> NodeDoc:
    node, rest = NodeDoc("", [], []), bytearray()
    for number, value, raw in wire.fields(data):
        if number == 1:
            node.inputs.append(wire.text(value))
        elif number == 2:
            node.outputs.append(wire.text(value))
        elif number == 3:
            node.name = wire.text(value)
        elif number == 4:
            node.op_type = wire.text(value)
        elif number == 5:
            attr = _attribute(wire.blob(value), const)
            node.attrs[attr.name] = attr
        elif number == 7:
            domain = wire.text(value)
            node.domain = "" if domain == "ai.onnx" else domain
        else:
            rest += raw
    node.rest = bytes(rest)
    return node


def _attribute(data: memoryview, const: partial[Const]) -> AttributeDoc:
    name, kind, implied = "", 0, 0
    graphs: list[GraphDoc] = []
    for number, value, _ in wire.fields(data):
        if number == 1:
            name = wire.text(value)
        elif number == 20:
            kind = wire.number(value)
        elif number in _TYPES:
            implied = _TYPES[number]
            if implied in (GRAPH, GRAPHS):
                graphs.append(_graph(wire.blob(value), const))
    return AttributeDoc(name, kind or implied, data, graphs)


def value_of(raw: bytes) -> ValueDoc:
    """Return a declared value from its ValueInfoProto."""
    name, dtype, shape = "", None, None
    for number, value, _ in wire.fields(memoryview(raw)):
        if number == 1:
            name = wire.text(value)
        elif number == 2:
            for kind, inner, _ in wire.fields(wire.blob(value)):
                if kind == 1:
                    dtype, shape = _tensor_type(wire.blob(inner))
    return ValueDoc(name, by_onnx(dtype) if dtype else None, shape, raw)


def _tensor_type(data: memoryview) -> tuple[int, tuple[int | str | None, ...] | None]:
    elem, shape = 0, None
    for number, value, _ in wire.fields(data):
        if number == 1:
            elem = wire.number(value)
        elif number == 2:
            dims = (v for n, v, _ in wire.fields(wire.blob(value)) if n == 1)
            shape = tuple(_dim(wire.blob(dim)) for dim in dims)
    return elem, shape


def _dim(data: memoryview) -> int | str | None:
    for number, value, _ in wire.fields(data):
        if number == 1:
            return wire.number(value)
        if number == 2:
            return wire.text(value)
    return None


def _opset(data: memoryview) -> tuple[str, int]:
    domain, version = "", 0
    for number, value, _ in wire.fields(data):
        if number == 1:
            domain = wire.text(value)
        elif number == 2:
            version = wire.number(value)
    return "" if domain == "ai.onnx" else domain, version


def _pair(data: memoryview) -> tuple[str, str]:
    return _field_text(data, 1), _field_text(data, 2)


def _function(data: memoryview) -> tuple[str, str]:
    return _field_text(data, 10), _field_text(data, 1)


def _field_text(data: memoryview, wanted: int) -> str:
    found = ""
    for number, value, _ in wire.fields(data):
        if number == wanted:
            found = wire.text(value)
    return found

"""Comparison of decoded records with the messages of the onnx package."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from sardonyx import _native

TYPE_KINDS = {
    "tensor_type": "tensor",
    "sparse_tensor_type": "sparse",
    "sequence_type": "sequence",
    "map_type": "map",
    "optional_type": "optional",
    "opaque_type": "opaque",
    None: "none",
}
TYPED_FIELDS = ("float", "int32", "int64", "double", "uint64", "string")


def all_same(
    records: Sequence[Any], protos: Sequence[Any], same: Callable[[Any, Any], None]
) -> None:
    assert len(records) == len(protos)
    for record, proto in zip(records, protos, strict=True):
        same(record, proto)


def entries(protos: Iterable[onnx.StringStringEntryProto]) -> list[tuple[str, str]]:
    return [(p.key, p.value) for p in protos]


def opsets(protos: Iterable[onnx.OperatorSetIdProto]) -> list[tuple[str, int]]:
    return [(p.domain, p.version) for p in protos]


class Comparison:
    """Asserts that records say what messages say; `data` is the buffer that was decoded."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def model(self, record: _native.ModelRecord, proto: onnx.ModelProto) -> None:
        for name in ("ir_version", "model_version", "producer_name", "producer_version"):
            assert getattr(record, name) == getattr(proto, name)
        assert (record.domain, record.doc_string) == (proto.domain, proto.doc_string)
        assert record.opset_imports == opsets(proto.opset_import)
        assert record.metadata == entries(proto.metadata_props)
        assert (record.graph is not None) == proto.HasField("graph")
        if record.graph is not None:
            self.graph(record.graph, proto.graph)
        all_same(record.functions, proto.functions, self.function)

    def function(self, record: _native.FunctionRecord, proto: onnx.FunctionProto) -> None:
        assert (record.domain, record.name) == (proto.domain, proto.name)
        assert record.overload == proto.overload
        assert record.inputs == list(proto.input)
        assert record.outputs == list(proto.output)
        assert record.attributes == list(proto.attribute)
        assert record.opset_imports == opsets(proto.opset_import)
        all_same(record.attribute_protos, proto.attribute_proto, self.attribute)
        all_same(record.nodes, proto.node, self.node)
        all_same(record.value_infos, proto.value_info, self.value_info)

    def graph(self, record: _native.GraphRecord, proto: onnx.GraphProto) -> None:
        assert (record.name, record.doc_string) == (proto.name, proto.doc_string)
        all_same(record.nodes, proto.node, self.node)
        all_same(record.initializers, proto.initializer, self.tensor)
        all_same(record.sparse_initializers, proto.sparse_initializer, self.sparse_tensor)
        all_same(record.inputs, proto.input, self.value_info)
        all_same(record.outputs, proto.output, self.value_info)
        all_same(record.value_infos, proto.value_info, self.value_info)

    def node(self, record: _native.NodeRecord, proto: onnx.NodeProto) -> None:
        for name in ("op_type", "domain", "overload", "name"):
            assert getattr(record, name) == getattr(proto, name)
        assert record.inputs == list(proto.input)
        assert record.outputs == list(proto.output)
        assert record.metadata == entries(proto.metadata_props)
        all_same(record.attributes, proto.attribute, self.attribute)

    def attribute(self, record: _native.AttributeRecord, proto: AttributeProto) -> None:
        assert (record.name, record.type) == (proto.name, proto.type)
        assert record.ref_attr_name == proto.ref_attr_name
        value: Any = record.value
        if proto.ref_attr_name or proto.type == AttributeProto.UNDEFINED:
            assert value is None
            return
        expected = onnx.helper.get_attribute_value(proto)
        comparisons = {
            AttributeProto.TENSOR: self.tensor,
            AttributeProto.GRAPH: self.graph,
            AttributeProto.SPARSE_TENSOR: self.sparse_tensor,
            AttributeProto.TYPE_PROTO: self.type,
            AttributeProto.TENSORS: lambda r, p: all_same(r, p, self.tensor),
            AttributeProto.GRAPHS: lambda r, p: all_same(r, p, self.graph),
            AttributeProto.SPARSE_TENSORS: lambda r, p: all_same(r, p, self.sparse_tensor),
            AttributeProto.TYPE_PROTOS: lambda r, p: all_same(r, p, self.type),
        }
        if proto.type in comparisons:
            comparisons[proto.type](value, expected)
        elif proto.type == AttributeProto.FLOATS:
            assert value.dtype == np.float32
            np.testing.assert_array_equal(value, np.array(proto.floats, np.float32))
        elif proto.type == AttributeProto.INTS:
            assert value.dtype == np.int64
            assert value.tolist() == list(proto.ints)
        else:
            np.testing.assert_equal(value, expected)  # not ==: a NaN is the same as itself
            assert type(value) is type(expected)

    def tensor(self, record: _native.TensorRecord, proto: TensorProto) -> None:
        assert (record.name, record.data_type) == (proto.name, proto.data_type)
        assert record.dims == tuple(proto.dims)
        assert record.location == proto.data_location
        assert record.external_data == entries(proto.external_data)
        assert record.has_segment == proto.HasField("segment")
        if record.storage == "raw":
            assert self.in_place(record) == proto.raw_data
        elif record.storage == "none":
            assert not proto.HasField("raw_data")
            assert not any(len(getattr(proto, f"{name}_data")) for name in TYPED_FIELDS)
        else:
            self.typed_data(record, getattr(proto, f"{record.storage}_data"))

    def typed_data(self, record: _native.TensorRecord, expected: Sequence[Any]) -> None:
        if record.storage == "string":
            assert record.strings == list(expected)
            assert (record.offset, record.values) == (-1, None)
            return
        dtype = {"float": "float32", "double": "float64"}.get(record.storage, record.storage)
        values = record.values
        if values is None:
            values = np.frombuffer(self.in_place(record), dtype)
        assert values.dtype == dtype
        np.testing.assert_array_equal(values, np.array(expected, dtype))

    def in_place(self, record: _native.TensorRecord) -> bytes:
        assert 0 <= record.offset <= record.offset + record.length <= len(self.data)
        return self.data[record.offset : record.offset + record.length]

    def sparse_tensor(
        self, record: _native.SparseTensorRecord, proto: onnx.SparseTensorProto
    ) -> None:
        assert record.dims == tuple(proto.dims)
        self.tensor(record.values, proto.values)
        self.tensor(record.indices, proto.indices)

    def value_info(self, record: _native.ValueInfoRecord, proto: onnx.ValueInfoProto) -> None:
        assert record.name == proto.name
        assert (record.type is not None) == proto.HasField("type")
        if record.type is not None:
            self.type(record.type, proto.type)

    def type(self, record: _native.TypeRecord, proto: onnx.TypeProto) -> None:
        which = proto.WhichOneof("value")
        assert record.kind == TYPE_KINDS[which]
        inner: Any = getattr(proto, which) if which else None
        if record.kind in ("tensor", "sparse"):
            assert record.elem_type == inner.elem_type
            self.shape(record, inner)
        elif record.kind == "map":
            assert record.key_type == inner.key_type
            self.elem(record, inner, "value_type")
        elif record.kind in ("sequence", "optional"):
            self.elem(record, inner, "elem_type")

    def elem(self, record: _native.TypeRecord, proto: Any, field: str) -> None:
        assert (record.elem is not None) == proto.HasField(field)
        if record.elem is not None:
            self.type(record.elem, getattr(proto, field))

    def shape(self, record: _native.TypeRecord, proto: Any) -> None:
        if not proto.HasField("shape"):
            assert record.shape is None
            return
        dims = proto.shape.dim
        assert record.shape == tuple(
            d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims
        )
        assert record.denotations == tuple(d.denotation for d in dims)


def check(proto: onnx.ModelProto) -> _native.ModelRecord:
    """Decode what `proto` serializes to and compare."""
    data = proto.SerializeToString()
    record = _native.decode(data)
    Comparison(data).model(record, proto)
    return record

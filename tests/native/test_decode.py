"""Decoded records say what the onnx package reads from the same bytes."""

import ast
import gc
import mmap
import resource
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper
from onnx.backend.test.case import model as model_cases
from typing_extensions import Buffer

from sardonyx import _native
from tests.native import models
from tests.native.same import Comparison, check
from tests.native.wire import field, message, tag, varint

PACKAGE_MODELS = sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))


def test_every_field() -> None:
    check(models.everything())


def test_standard_function_bodies() -> None:
    assert len(check(models.standard_functions()).functions) > 20


@pytest.mark.parametrize("path", PACKAGE_MODELS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_models_of_the_onnx_package(path: Path) -> None:
    data = path.read_bytes()
    proto = onnx.load_from_string(data)
    Comparison(data).model(_native.decode(data), proto)


def test_model_cases_of_the_onnx_package() -> None:
    cases = [case for case in model_cases.collect_testcases() if case.model is not None]
    assert cases
    for case in cases:
        check(case.model)


@pytest.mark.parametrize("tensor", models.tensors(), ids=lambda t: t.name)
def test_decode_tensor(tensor: TensorProto) -> None:
    data = tensor.SerializeToString()
    Comparison(data).tensor(_native.decode_tensor(data), tensor)


def test_empty_bytes_are_an_empty_model() -> None:
    record = _native.decode(b"")
    assert (record.graph, record.functions, record.ir_version) == (None, [], 0)


@pytest.mark.parametrize(
    "wrap",
    [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)],
    ids=["bytes", "bytearray", "memoryview", "numpy"],
)
def test_buffers(wrap: Callable[[bytes], Buffer]) -> None:
    model = models.everything()
    data = model.SerializeToString()
    Comparison(data).model(_native.decode(wrap(data)), model)


def test_a_strided_buffer_is_refused() -> None:
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        _native.decode(np.zeros(8, np.uint8)[::2])
    with pytest.raises(TypeError):
        _native.decode("text")


def test_records_keep_the_buffer_alive() -> None:
    array = np.frombuffer(models.everything().SerializeToString(), np.uint8).copy()
    alive = weakref.ref(array)
    node = _native.decode(array).graph.nodes[0]
    del array
    gc.collect()
    assert alive() is not None
    assert node.name == "n/ö"
    del node
    gc.collect()
    assert alive() is None


# -- the wire format in forms that the onnx package does not write


def attribute_of(payload: bytes) -> _native.AttributeRecord:
    node = field(5, payload)
    model = field(7, field(1, node))
    return _native.decode(model).graph.nodes[0].attributes[0]


def test_packed_and_unpacked_scalars_mix() -> None:
    ints = field(8, 5) + field(8, varint(-1) + varint(300)) + field(8, b"") + field(8, 7)
    assert attribute_of(ints).value.tolist() == [5, -1, 300, 7]
    half = np.float32(0.5).tobytes()
    floats = tag(7, 5) + half + field(7, half + half)
    assert attribute_of(floats).value.tolist() == [0.5] * 3


def test_unpacked_and_split_tensor_data() -> None:
    one, two = (np.float32(v).tobytes() for v in (1, 2))
    packed = _native.decode_tensor(field(4, one + two))
    assert (packed.storage, packed.offset, packed.length, packed.values) == ("float", 2, 8, None)
    for data in (field(4, one) + field(4, two), tag(4, 5) + one + tag(4, 5) + two):
        record = _native.decode_tensor(data)
        assert (record.storage, record.offset, record.length) == ("float", -1, 0)
        assert record.values.tolist() == [1, 2]
    ints = _native.decode_tensor(field(5, 1) + field(5, varint(-1) + varint(2**31 - 1)))
    assert ints.values.dtype == np.int32
    assert ints.values.tolist() == [1, -1, 2**31 - 1]
    double = _native.decode_tensor(tag(10, 1) + np.float64(3).tobytes())
    assert (double.offset, double.length) == (1, 8)


def test_decoded_arrays_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        _native.decode_tensor(field(7, b"\1\2")).values[0] = 5


def test_raw_data_come_before_typed_data() -> None:
    record = _native.decode_tensor(field(9, b"abcd") + field(7, b"\1"))
    assert (record.storage, record.offset, record.length) == ("raw", 2, 4)
    record = _native.decode_tensor(field(7, b"\1") + field(9, b""))
    assert (record.storage, record.values.tolist()) == ("int64", [1])
    record = _native.decode_tensor(field(9, b"abcd") + field(9, b"ef"))
    assert (record.offset, record.length) == (8, 2)


def test_the_last_of_a_repeated_singular_field_counts() -> None:
    assert _native.decode(field(1, 3) + field(1, 8)).ir_version == 8
    twice = field(5, message((2, 1), (8, b"a"))) + field(5, message((2, 7), (8, b"b")))
    tensor = attribute_of(twice).value
    assert (tensor.name, tensor.data_type) == ("b", 7)


def test_a_graph_in_two_parts_is_one_graph() -> None:
    parts = field(7, field(1, field(4, b"A"))) + field(7, message((2, b"g"), (1, field(4, b"B"))))
    graph = _native.decode(parts).graph
    assert graph.name == "g"
    assert [node.op_type for node in graph.nodes] == ["A", "B"]


def test_the_last_kind_of_a_type_counts() -> None:
    tensor = field(1, field(1, 7))
    sequence = field(4, field(1, tensor))
    record = attribute_of(field(14, tensor + sequence)).value
    assert (record.kind, record.elem_type, record.elem.elem_type) == ("sequence", 0, 7)
    record = attribute_of(field(14, sequence + tensor)).value
    assert (record.kind, record.elem_type, record.elem) == ("tensor", 7, None)


@pytest.mark.parametrize("attribute", models.attributes()[:14], ids=lambda a: a.name)
def test_an_absent_attribute_type_is_deduced(attribute: AttributeProto) -> None:
    bare = AttributeProto()
    bare.CopyFrom(attribute)
    bare.ClearField("type")
    record = attribute_of(bare.SerializeToString())
    assert record.type == attribute.type
    assert type(record.value) is type(attribute_of(attribute.SerializeToString()).value)


def test_a_value_that_is_not_given_is_none() -> None:
    for kind in (AttributeProto.TENSOR, AttributeProto.GRAPH, AttributeProto.TYPE_PROTO, 99):
        assert attribute_of(field(20, kind)).value is None
    assert attribute_of(field(20, AttributeProto.TENSORS)).value == []


def test_unknown_fields_are_skipped() -> None:
    unknown = field(900, 5) + field(901, b"abc") + tag(902, 5) + b"1234" + tag(903, 1) + b"8" * 8
    record = _native.decode(unknown + field(1, 8) + unknown + field(7, unknown))
    assert record.ir_version == 8
    assert record.graph is not None


def test_documentation_need_not_be_utf8() -> None:
    entry = field(14, message((1, b"k\xff"), (2, b"v")))
    record = _native.decode(field(6, b"doc\xff") + entry + field(7, field(10, b"\xff")))
    assert record.doc_string == "doc\ufffd"
    assert record.metadata == [("k\ufffd", "v")]
    assert record.graph is not None
    assert record.graph.doc_string == "\ufffd"


# -- size


def test_a_file_over_two_gib(tmp_path: Path) -> None:
    """A sparse file, which takes no space on disk; the pages of the weight are not read."""
    size = 3 << 30
    raw = tag(9, 2) + varint(size)
    tensor_head = message((8, b"w"), (2, TensorProto.UINT8), (1, size)) + raw
    after = message((8, b"after"), (9, b"abcd"))
    head = tag(5, 2) + varint(len(tensor_head) + size) + tensor_head
    tail = field(5, after) + field(2, b"big")
    start = field(1, 8) + tag(7, 2) + varint(len(head) + size + len(tail)) + head
    path = tmp_path / "big.onnx"
    with path.open("wb") as file:
        file.write(start)
        file.seek(size, 1)
        file.write(tail)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        record = _native.decode(mapped)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        assert faults < 500  # reading the weight would fault at least once per 2 MiB page
        graph = record.graph
        assert graph is not None
        big, small = graph.initializers
        assert (big.offset, big.length, big.dims) == (len(start), size, (size,))
        assert mapped[small.offset : small.offset + small.length] == b"abcd"
        assert graph.name == "big"
        with pytest.raises(BufferError):
            mapped.close()
        del record, graph, big, small


def test_decode_accepts_many_nodes() -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(5000)]
    model = helper.make_model(helper.make_graph(nodes, "chain", [], []))
    check(model)


# -- the stub


def test_the_stub_declares_the_names_of_the_module() -> None:
    stub = Path(_native.__file__).with_name("_native.pyi")

    def members(made: ast.ClassDef) -> set[str]:
        functions = {m.name for m in made.body if isinstance(m, ast.FunctionDef)}
        values = {t.id for m in made.body if isinstance(m, ast.Assign) for t in m.targets}
        return {name for name in functions | values if not name.startswith("_")}

    described = {
        node.name: members(node)
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    actual = {
        name: {member for member in vars(made) if not member.startswith("_")}
        for name, made in vars(_native).items()
        if isinstance(made, type)
    }
    assert described == actual

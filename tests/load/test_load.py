"""Loading: every kind of source, external data, initializers, functions, sparse tensors."""

from __future__ import annotations

import io
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import sardonyx
from sardonyx.errors import InvalidGraph
from sardonyx.graph.const import SourceConst
from sardonyx.load import load

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 3] x) => (float[N, 3] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def sources(folder: Path) -> dict[str, Any]:
    made = parser.parse_model(TEXT)
    data = made.SerializeToString()
    path = folder / "m.onnx"
    path.write_bytes(data)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        "str": str(path),
        "Path": path,
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(data),
        "numpy": np.frombuffer(data, np.uint8),
        "mmap": mapped,
        "file": path.open("rb"),
        "BytesIO": io.BytesIO(data),
        "ModelProto": made,
    }


def test_every_kind_of_source(tmp_path: Path) -> None:
    for kind, source in sources(tmp_path).items():
        session = sardonyx.InferenceSession(source)
        (y,) = session.run(None, {"x": X})
        np.testing.assert_array_equal(y, X * [1, 2, 3], err_msg=kind)


def test_large_weights_stay_in_the_file(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 256])],
        [numpy_helper.from_array(w, "w")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    (node,) = load(path).graph.nodes
    const = node.inputs[1].const  # type: ignore[union-attr]
    assert isinstance(const, SourceConst)
    assert not const.is_read
    np.testing.assert_array_equal(const.read(), w)


@pytest.mark.parametrize("where", ["file", "memory"])
def test_external_data(tmp_path: Path, where: str) -> None:
    made = parser.parse_model(TEXT)
    made.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    )
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    options = sardonyx.SessionOptions()
    if where == "memory":
        data = (tmp_path / "w.bin").read_bytes()
        (tmp_path / "w.bin").unlink()
        options.add_external_initializers_from_files_in_memory(["w.bin"], [data], [len(data)])
    session = sardonyx.InferenceSession(path, options)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X * [1, 2, 3])


def test_a_buffer_shorter_than_its_stated_length() -> None:
    with pytest.raises(
        sardonyx.SardonyxError, match="has 2 bytes, and its length is stated as 1000000"
    ):
        sardonyx.SessionOptions().add_external_initializers_from_files_in_memory(
            ["w"], [b"ab"], [10**6]
        )


def test_initializers_that_are_inputs() -> None:
    made = parser.parse_model(TEXT)
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    session = sardonyx.InferenceSession(made)
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert [i.name for i in session.get_overridable_initializers()] == ["w"]
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X * [1, 2, 3])
    fed = session.run(None, {"x": X, "w": np.zeros(3, np.float32)})
    np.testing.assert_array_equal(fed[0], X * 0)


def test_a_default_is_a_constant_until_it_is_fed() -> None:
    """So weights that an exporter lists as inputs are folded and packed like others."""
    made = parser.parse_model(TEXT)
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, ["N"]))
    session = sardonyx.InferenceSession(made)
    assert [i.name for i in session._compiled.program.inputs] == ["x"]
    for w in (np.zeros(3, np.float32), np.ones(1, np.float32)):
        np.testing.assert_array_equal(session.run(None, {"x": X, "w": w})[0], X * w)
    assert {i.name for i in session._compiled.program.inputs} == {"x", "w"}
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X * [1, 2, 3])
    assert [i.name for i in session.get_inputs()] == ["x"]


def test_initializers_are_constants_before_ir_4() -> None:
    made = parser.parse_model(TEXT)
    made.ir_version = 3
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    session = sardonyx.InferenceSession(made)
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert session.get_overridable_initializers() == []


def test_nodes_out_of_order() -> None:
    made = parser.parse_model(TEXT)
    made.graph.node.insert(0, helper.make_node("Neg", ["y"], ["z"]))
    made.graph.output[0].name = "z"
    np.testing.assert_array_equal(
        sardonyx.InferenceSession(made).run(None, {"x": X})[0], -X * [1, 2, 3]
    )


def test_functions_are_expanded() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
    g (float[N] x) => (float[N] y) { y = own.twice <k = 3.0> (x) }
    <domain: "own", opset_import: ["" : 17, "own" : 1]> scale <k> (a) => (b) {
        c = Constant <value_float: float = @k> ()
        b = Mul(a, c)
    }
    <domain: "own", opset_import: ["" : 17, "own" : 1]> twice <k> (a) => (b) {
        t = own.scale <k: float = @k> (a)
        b = own.scale <k: float = @k> (t)
    }"""
    session = sardonyx.InferenceSession(parser.parse_model(text))
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [9, 9]


def test_unknown_attributes_of_constants() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g () => (y) { y = Constant <mark: int = 1, value_float: float = 3.0> () }"""
    assert sardonyx.InferenceSession(parser.parse_model(text)).run(None, {})[0] == 3
    with pytest.raises(InvalidGraph, match=r"must have exactly one of .*, got \['mark'\]"):
        sardonyx.InferenceSession(
            parser.parse_model(text.replace(", value_float: float = 3.0", ""))
        )


@pytest.mark.parametrize(
    ("opset", "op", "wanted"),
    [(9, "Erf", [0, 1]), (13, "ReduceLogSum", [3]), (18, "ReduceLogSumExp", [40])],
)
def test_integer_types_that_newer_opsets_dropped(opset: int, op: str, wanted: list[int]) -> None:
    """Their type is not known before inference, as they come out of a node."""
    text = f"""<ir_version: 9, opset_import: ["" : {opset}]>
    g (int32[2] x) => (y) {{ a = Abs(x) y = {op}(a) }}"""
    found = sardonyx.InferenceSession(parser.parse_model(text)).run(
        None, {"x": np.array([0, -40], np.int32)}
    )
    assert found[0].dtype == np.int32
    assert found[0].tolist() == wanted


def test_sparse_initializers() -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [5.0, 7.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [2, 2], [0, 1, 1, 2])
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
            sparse_initializer=[helper.make_sparse_tensor(values, indices, [2, 3])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    (y,) = sardonyx.InferenceSession(made).run(None, {"x": np.zeros((2, 3), np.float32)})
    assert y.tolist() == [[0, 5, 0], [0, 0, 7]]


KINDS = [TensorProto.DataType.Name(k) for k in range(1, 27) if k != TensorProto.STRING]


@pytest.mark.parametrize("kind", KINDS)
def test_typed_and_raw_data_of_every_type(kind: str) -> None:
    number = TensorProto.DataType.Value(kind)
    dtype = helper.tensor_dtype_to_np_dtype(number)
    array = np.array([1, 0, 1, 1, 0], np.float32).astype(dtype)
    for tensor in (
        numpy_helper.from_array(array, "w"),
        helper.make_tensor(
            "w", number, [5], array.astype(np.float32 if dtype.kind != "c" else dtype)
        ),
    ):
        made = helper.make_model(
            helper.make_graph(
                [helper.make_node("Identity", ["w"], ["y"])],
                "g",
                [],
                [helper.make_tensor_value_info("y", number, [5])],
                [tensor],
            ),
            opset_imports=[helper.make_opsetid("", 25)],
        )
        (y,) = sardonyx.InferenceSession(made).run(None, {})
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.astype(np.complex64), array.astype(np.complex64))


def test_a_sparse_file_over_2_gib(tmp_path: Path) -> None:
    """The weight is 2.5 GiB of a hole: nothing of it is read but the one row that is asked for."""
    rows, columns = 5 << 17, 1024
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, columns])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    with open(tmp_path / "w.bin", "wb") as file:
        file.seek((rows - 1) * columns * 4)
        file.write(np.full(columns, 3, np.float32).tobytes())
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("Gather", ["w", "i"], ["y"])],
            "g",
            [helper.make_tensor_value_info("i", TensorProto.INT64, [1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, columns])],
            [tensor],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    session = sardonyx.InferenceSession(tmp_path / "m.onnx")
    assert (session.run(None, {"i": np.array([rows - 1])})[0] == 3).all()


def test_required_outputs_may_be_left_out() -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = sardonyx.InferenceSession(model.SerializeToString())
    (y,) = session.run(None, {"x": np.float32([0, 255])})
    assert y.tolist() == [0, 255]

"""Documents: what is read is written, unknown parts included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sardonyx.errors import InvalidArgument, InvalidGraph, InvalidProtobuf, SardonyxError
from sardonyx.graph.const import Deferred
from sardonyx.graph.dtype import by_name
from sardonyx.quantization.document import (
    NodeDoc,
    attribute,
    document_bytes,
    read_document,
    save_document,
)
from sardonyx.quantization.document.session import open_session
from sardonyx.quantization.document.types import value_types, with_value_infos
from sardonyx.quantization.document.wire import fields
from tests.quantization.models import MODELS, samples

UNUSUAL = """
    <ir_version: 9, opset_import: ["": 13, "some.domain": 3, "local": 1], producer_name: "p">
    g (float[n, 4] x, bool b) => (float[?] y) {
        a = some.domain.Unknown <mode = "m", sizes = [-1, 3], reals = [1.5]> (x, "", w)
        c = local.twice (x)
        y = If (b) <
            then_branch = one () => (float[?] t) { t = Add(a, w) },
            else_branch = two () => (float[?] e) { e = Neg(c) }
        >
    }
    <opset_import: ["": 13], domain: "local">
    twice (v) => (d) { d = Add(v, v) }
"""


def unusual() -> onnx.ModelProto:
    model = onnx.parser.parse_model(UNUSUAL)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    model.graph.node[0].doc_string = "a node"
    model.graph.initializer[0].doc_string = "lost: tensors are written anew"
    model.graph.doc_string, model.doc_string = "a graph", "a model"
    model.metadata_props.add(key="k", value="v")
    model.model_version = 7
    return model


@pytest.mark.parametrize("model", [unusual(), *(make() for make in MODELS.values())])
def test_round_trip(model: onnx.ModelProto) -> None:
    result = onnx.ModelProto.FromString(document_bytes(read_document(model)))
    expected = onnx.ModelProto()
    expected.CopyFrom(model)
    for proto in (expected, result):
        for tensor in proto.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    assert _shown(result) == _shown(expected)


def _shown(model: onnx.ModelProto) -> list[str]:
    """Return the text of a model without fields that are set to their default."""
    return [line for line in str(model).splitlines() if not line.endswith((': ""', "i: 0"))]


def test_types_stop_at_unknown_ops() -> None:
    document = read_document(unusual())
    types = value_types(document)
    assert types["c"].dtype.name == "f32"
    assert "a" not in types
    with_value_infos(document)
    assert [v.name for v in document.graph.values] == ["c"]


def test_edits_keep_track_of_readers() -> None:
    graph = read_document(MODELS["convnet"]()).graph
    graph.replace_input("p", "q")
    assert [n.op_type for n in graph.readers("q")] == ["Conv", "Add"]
    assert not graph.readers("p")
    graph.replace_output("p", "q")
    graph.sort()
    assert graph.drop_unused_initializers() == set()
    graph.add(NodeDoc("Neg", ["y"], ["x2"]))
    assert [n.op_type for n in graph.readers("y")] == ["Neg"]
    graph.nodes[0].inputs[0] = "x2"
    with pytest.raises(InvalidGraph, match="cycle"):
        graph.sort()


def test_external_data_goes_and_stays_beside_the_model(tmp_path: Path) -> None:
    document = read_document(MODELS["convnet"]())
    big = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    save_document(document, tmp_path / "small.onnx", external=True)
    assert not (tmp_path / "small.onnx.data").exists()
    document.graph.initializers["big"] = read_document(
        helper.make_model(helper.make_graph([], "g", [], [], [numpy_helper.from_array(big, "big")]))
    ).graph.initializers["big"]
    save_document(document, tmp_path / "big.onnx", external=True)
    assert (tmp_path / "big.onnx.data").stat().st_size >= big.nbytes
    again = read_document(tmp_path / "big.onnx")
    np.testing.assert_array_equal(again.graph.initializers["big"].read(), big)
    loaded = onnx.load(tmp_path / "big.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.initializer[-1]), big)


def test_deferred_constants_are_made_once_and_late() -> None:
    calls = []

    def make() -> np.ndarray:
        calls.append(1)
        return np.float32([1, 2])

    document = read_document(MODELS["convnet"]())
    document.graph.initializers["d"] = Deferred(by_name("f32"), (2,), make)
    from sardonyx.quantization.document.write import document_message

    message = document_message(document, None)
    assert not calls
    model = onnx.ModelProto.FromString(message.joined())
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[-1]), [1, 2])
    assert len(calls) == 1


def test_sessions_read_weights_in_place() -> None:
    data = MODELS["convnet"]().SerializeToString()
    (y,) = open_session(read_document(data)).run(None, samples("convnet")[0])
    assert y.shape == (2, 5)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\x7f", "beyond the end"),
        (b"\x80", "no end"),
        (b"\x0b", "wire type 3"),
    ],
)
def test_damaged_messages(data: bytes, message: str) -> None:
    with pytest.raises(InvalidProtobuf, match=message):
        list(fields(memoryview(data)))


def test_truncated_models_are_errors() -> None:
    data = MODELS["convnet"]().SerializeToString()
    for end in range(0, len(data), 97):
        with pytest.raises(SardonyxError):
            read_document(data[:end])


def test_a_folder_as_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is a folder"):
        save_document(read_document(MODELS["convnet"]()), tmp_path)


def test_attributes() -> None:
    values = {"i": -3, "f": 0.5, "s": b"text", "l": [1, -2, 3]}
    assert {k: attribute(k, v).value for k, v in values.items()} == values

"""Models in onnxruntime's .ort format: files that onnxruntime writes, and hostile ones."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import sardonyx
from sardonyx.base.flatbuffer_writer import Append, Scalar, file, table, tables, text
from sardonyx.errors import InvalidProtobuf, NotImplemented, SardonyxError
from sardonyx.graph.const import SourceConst
from sardonyx.load import load
from tests import seed_models
from tests.hostile_runs import bounded_memory, load_and_run
from tests.mutate import change_bytes


@pytest.fixture(autouse=True, scope="module")
def _limited() -> Iterator[None]:
    with bounded_memory(2 << 30):
        yield


def linear() -> onnx.ModelProto:
    """A weight large enough to stay in the file, names, a description and metadata."""
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17], producer_name: "here", doc_string: "a model">
    g (float[batch, 64] x) => (float[batch, 64] y) { h = MatMul(x, w)  y = Relu(h) }""")
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    model.metadata_props.add(key="a", value="b")
    return model


def words() -> onnx.ModelProto:
    """Strings, sequences, maps, and attributes of most types."""
    return onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
    g (string[n] x, float[n, 2] v) => (int64[n] y, seq(map(string, float)) z, float[n, 2] u) {
        y = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [4, -7]> (x)
        z = ai.onnx.ml.ZipMap <classlabels_strings = ["p", "q"]> (v)
        u = ai.onnx.ml.Scaler <offset = [0.5, 1.5], scale = [2.0, 3.0]> (v)
    }""")


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "linear": linear, "words": words, "bodies": seed_models.bodies, "ranks": seed_models.ranks,
}  # fmt: skip


@functools.cache
def converted(name: str) -> bytes:
    """A model as onnxruntime converts it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = f"{folder}/m.ort"
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.log_severity_level = 3
        onnxruntime.InferenceSession(MODELS[name]().SerializeToString(), options)
        return Path(folder, "m.ort").read_bytes()


FEEDS: dict[str, dict[str, Any]] = {
    "linear": {"x": np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)},
    "words": {
        "x": np.array(["b", "a", "c"], object),
        "v": np.arange(6, dtype=np.float32).reshape(3, 2),
    },
    "bodies": {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "times": np.array(2),
        "which": np.array(True),
    },
    "ranks": {"x": np.ones((2, 3), np.float32), "times": np.array(2), "which": np.array(False)},
}


def listed(session: Any) -> list[tuple[Any, ...]]:
    return [(v.name, v.type, v.shape) for v in session.get_inputs() + session.get_outputs()]


@pytest.mark.parametrize("name", MODELS)
def test_models_that_onnxruntime_converted(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.ort"
    path.write_bytes(converted(name))
    theirs = onnxruntime.InferenceSession(str(path))
    ours = sardonyx.InferenceSession(path)
    assert listed(ours) == listed(theirs)
    expected, found = (s.run(None, FEEDS[name]) for s in (theirs, ours))
    for a, b in zip(expected, found, strict=True):
        if isinstance(a, list):
            assert a == b
        else:
            np.testing.assert_allclose(b, a, 1e-5, 1e-6)


def test_metadata() -> None:
    theirs = onnxruntime.InferenceSession(converted("linear")).get_modelmeta()
    ours = sardonyx.InferenceSession(converted("linear")).get_modelmeta()
    for name in ("producer_name", "graph_name", "description", "version", "custom_metadata_map"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_weights_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.ort"
    path.write_bytes(converted("linear"))
    (weight,) = [
        v.const for n in load(path).graph.sorted_nodes() for v in n.inputs if v and v.const
    ]
    assert isinstance(weight, SourceConst)
    assert weight.source.file is not None
    assert weight.source.file.path == str(path)


def test_model_paths_that_are_not_utf8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.ort")
    Path(path).write_bytes(converted("linear"))
    (y,) = sardonyx.InferenceSession(path).run(None, FEEDS["linear"])
    assert y.shape == (2, 64)


def test_sessions_of_bytes_are_pickled() -> None:
    session = pickle.loads(pickle.dumps(sardonyx.InferenceSession(converted("linear"))))
    (y,) = session.run(None, FEEDS["linear"])
    assert y.shape == (2, 64)


def model_file(version: str, graph: Append | None) -> bytes:
    return bytes(file(table([text(version), table([None] * 7 + [graph])]), b"ORTM"))


def nested(depth: int) -> Append:
    """A graph with a node whose body has a node with a body, and so on."""
    graph = table([])
    for _ in range(depth):
        attribute = table([text("body"), None, Scalar("<i", 5), *[None] * 4, graph])
        graph = table([None, None, tables([table([*[None] * 10, tables([attribute])])])])
    return graph


COMPILED = table([None, None, tables([table([*[None] * 6, Scalar("<i", 1), text("QNN")])])])
OUTSIDE = table([tables([table([*[None] * 6, Scalar("<q", 8)])])])
BAD = {
    "zeros": (b"\x20\0\0\0ORTM" + b"\0" * 64, SardonyxError, "the .ort format"),
    "cut": (converted("linear")[:-40], InvalidProtobuf, "is not a valid model in the .ort format"),
    "no graph": (model_file("6", None), InvalidProtobuf, "it has no graph"),
    "newer": (model_file("7", nested(0)), NotImplemented, "version '7' of the .ort format"),
    "deep": (model_file("6", nested(80)), InvalidProtobuf, "nested more than 64 deep"),
    "compiled": (model_file("6", COMPILED), NotImplemented, "a node that QNN compiled"),
    "data file": (model_file("6", OUTSIDE), InvalidProtobuf, "which only checkpoints have"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_refused(name: str) -> None:
    data, kind, what = BAD[name]
    with pytest.raises(kind, match=what):
        sardonyx.InferenceSession(data)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300)
@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(sorted(MODELS)),
    st.randoms(use_true_random=False),
)
def test_changed_bytes(name: str, other: str, rng: Random) -> None:
    load_and_run(change_bytes(rng, converted(name), converted(other)), rng)


def test_references_to_the_same_bytes_are_bounded() -> None:
    """A graph that lists one node many times, whose body does so again: 2**60 nodes in all."""
    graph = table([])
    data = bytearray(model_file("6", _doubled(graph, 40)))
    with pytest.raises(InvalidProtobuf, match="the same bytes"):
        sardonyx.InferenceSession(bytes(data))


def test_repeated_long_names_are_bounded() -> None:
    """A node with 20000 inputs that are one name of 1 MB: 20 GB if each were a copy."""
    name = text("x" * (1 << 20))
    node = table([*[None] * 5, text("Sum"), *[None] * 2, _repeated(name, 20_000)])
    data = model_file("6", table([None, None, tables([node])]))
    with pytest.raises(InvalidProtobuf, match="a long name is repeated too often"):
        sardonyx.InferenceSession(data)


def _doubled(graph: Append, levels: int) -> Append:
    for _ in range(levels):
        attribute = table([text("body"), None, Scalar("<i", 5), *[None] * 4, graph])
        graph = table([None, None, _repeated(table([*[None] * 10, tables([attribute])]), 2)])
    return graph


def _repeated(one: Append, count: int) -> Append:
    """A vector whose elements are the same object."""

    def append(out: bytearray) -> int:
        at = len(out)
        out += count.to_bytes(4, "little") + bytes(4 * count)
        target = one(out)
        for slot in range(at + 4, at + 4 + 4 * count, 4):
            out[slot : slot + 4] = (target - slot).to_bytes(4, "little")
        return at

    return append

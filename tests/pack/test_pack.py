"""Packs: round trips of every kind of model, and how packs are looked up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import sardonyx
from sardonyx.cli import main
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.const import SourceConst
from sardonyx.models import DIGITS
from sardonyx.ort.node_arg import ModelMetadata
from sardonyx.pack.constants import PackConst
from sardonyx.pack.file import PackFile
from tests.pack.packs import (
    LAYERS,
    embedded,
    external,
    layers,
    leftovers,
    model,
    opened,
    packed,
    random,
    stages,
    uses_pack,
)


def body(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 21]>\n' + text)


def branches() -> onnx.ModelProto:
    """Both branches have a weight w, of their own, large enough to be packed."""
    graphs = []
    for name, seed in (("yes", 1), ("no", 2)):
        graphs.append(
            helper.make_graph(
                [helper.make_node("MatMul", ["x", "w"], [name])],
                name,
                [],
                [helper.make_tensor_value_info(name, 1, None)],
                [numpy_helper.from_array(random(128, 160, seed=seed), "w")],
            )
        )
    node = helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    return model([node], {}, {"c": (9, []), "x": ["n", 128]}, ["y"])


LOOP = body(
    """g (int64 m, float[n, 4] x) => (float[k, 4] y, float[t, j] z) {
        yes = Constant <value = bool {1}> ()
        y, z = Loop (m, yes, x) <body = b (int64 i, bool c, float[a, 4] v)
            => (bool go, float[a2, 4] out, float[j] row)
            <float[1, 4] w = {1, 2, 3, 4}> {
                go = Identity (c)
                out = Concat <axis = 0> (v, w)
                row = ReduceMax <keepdims = 0> (w)
            }>
    }"""
)
SCAN = body(
    """g (float[4] s, float[n, 4] x) => (float[4] y, float[n, 4] z) {
        y, z = Scan (s, x) <num_scan_inputs = 1, body = b (float[4] a, float[4] v)
            => (float[4] out, float[4] row) <float[4] w = {1, 2, 3, 4}> {
                t = Mul (v, w)
                out = Add (a, t)
                row = Identity (out)
            }>
    }"""
)
NONZERO = body(
    """g (float[a, b] x, float[a, b] y) => (float[k] z) {
        i = NonZero (x)
        t = Transpose <perm = [1, 0]> (i)
        v = GatherND (y, t)
        w = Shape (v)
        u = ConstantOfShape <value = float {3}> (w)
        z = Add (v, u)
    }"""
)
STRINGS = body(
    """g (string[n] x) => (bool[n, 2] y) <string[1, 2] w = {"a", "ä\\u0000"}> {
        a = Constant <value_ints = [-1, 1]> ()
        r = Reshape (x, a)
        y = Equal (r, w)
    }"""
)
SPECIALS = body(
    """g (float[n, 3] x) => (float[n, 3] y) {
        low = Constant <value = float {-inf}> ()
        a = LeakyRelu <alpha = 0.1> (x)
        y = Clip (a, low)
    }"""
)

MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "layers": (layers, LAYERS),
    "then": (branches, {"c": np.array(True), "x": random(3, 128)}),
    "else": (branches, {"c": np.array(False), "x": random(3, 128)}),
    "loop": (lambda: LOOP, {"m": np.array(3), "x": random(2, 4)}),
    "scan": (lambda: SCAN, {"s": random(4), "x": random(5, 4)}),
    "nonzero": (lambda: NONZERO, {"x": random(3, 4) > 0, "y": random(3, 4)}),
    "strings": (lambda: STRINGS, {"x": np.array(["a", "ä\0", "b"], object)}),
    "specials": (lambda: SPECIALS, {"x": random(2, 3)}),
}


def same(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes() if a.dtype != object else (a == b).all()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("place", [embedded, external])
def test_round_trip(name: str, place: Any, tmp_path: Path) -> None:
    make, feeds = MODELS[name]
    made = make()
    if name == "strings" and place is external:
        pytest.skip("strings have no external form")
    path = place(tmp_path, made)
    feeds = {k: v.astype(np.float32) if v.dtype == bool and v.ndim else v for k, v in feeds.items()}
    plain = opened(path)
    packed(path)
    session = opened(path, pack_verify="1")
    assert uses_pack(session)
    same(session.run(None, feeds), plain.run(None, feeds))
    for ask in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        said = [[(a.name, a.type, a.shape) for a in getattr(s, ask)()] for s in (session, plain)]
        assert said[0] == said[1]
    meta = [s.get_modelmeta() for s in (session, plain)]
    for field in ModelMetadata.__slots__:
        assert getattr(meta[0], field) == getattr(meta[1], field)


def test_bodies_have_their_own_packed_weights(tmp_path: Path) -> None:
    path = embedded(tmp_path, branches())
    packed(path)
    forms = PackFile(f"{path}.pack").document["forms"]
    assert [row for _, row, *_ in forms] == ["matmul_pack"] * 2
    assert len({number for number, *_ in forms}) == 2


GROWTH = """
import sys, numpy, sardonyx
sardonyx.InferenceSession(sys.argv[2])  # imports
def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
before = anonymous()
session = sardonyx.InferenceSession(sys.argv[1])
session.run(None, {"x": numpy.ones((1, 1024), numpy.float32)})
print(anonymous() - before)
"""


def test_weights_take_no_memory(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    made = model([node], {"w": random(1024, 8192)}, {"x": ["n", 1024]}, ["y"])
    path = embedded(tmp_path, made)
    for is_packed in (False, True):
        if is_packed:
            packed(path)
        command = [sys.executable, "-c", GROWTH, path, str(DIGITS)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        assert (int(ran.stdout) < 4 << 20) is is_packed  # the weight has 32 MiB


def test_built_in_model(tmp_path: Path) -> None:
    path = str(shutil.copy(DIGITS, tmp_path))
    feeds = {"image": random(4, 1, 8, 8)}
    want = opened(path).run(None, feeds)
    packed(path)
    session = opened(path)
    assert uses_pack(session)
    same(session.run(None, feeds), want)


def test_defaults_of_inputs(tmp_path: Path) -> None:
    made = layers()
    made.graph.input.append(helper.make_tensor_value_info("bias", 1, [256]))
    path = embedded(tmp_path, made)
    want = opened(path).run(None, LAYERS)
    packed(path)
    session = opened(path)
    assert uses_pack(session)
    assert [a.name for a in session.get_overridable_initializers()] == ["bias"]
    same(session.run(None, LAYERS), want)
    zero = session.run(None, {**LAYERS, "bias": np.zeros(256, np.float32)})
    assert zero[0].tobytes() != want[0].tobytes()


def with_grid(rows: int) -> onnx.ModelProto:
    """With a sum whose constant must be aligned."""
    made = layers()
    made.graph.initializer.insert(1, numpy_helper.from_array(random(rows, 128), "grid"))
    made.graph.input.append(helper.make_tensor_value_info("x", 1, [rows, 128]))
    made.graph.output.append(helper.make_tensor_value_info("z", 1, None))
    made.graph.node.append(helper.make_node("Add", ["x", "grid"], ["z"]))
    return made


@pytest.mark.parametrize("is_aligned", [True, False])
def test_what_stays_in_the_file(is_aligned: bool, tmp_path: Path) -> None:
    """Weights that are read in place stay in their file; of others the pack has the layout."""
    made = with_grid(300)
    if is_aligned:
        del made.graph.initializer[0]
    path = external(tmp_path, made)
    packed(path)
    session = opened(path)
    values = [v for n in session._compiled.model.graph.nodes for v in n.inputs if v is not None]
    found = {v.name: v.const for v in values if v.const is not None}
    assert isinstance(found["grid"], PackConst) is not is_aligned
    assert type(found["w"]) is type(found["table"]) is SourceConst
    assert not found["w"].is_read


def test_blobs_are_aligned(tmp_path: Path) -> None:
    path = external(tmp_path, with_grid(3000))
    packed(path)
    blobs = PackFile(f"{path}.pack").blobs
    assert all(b.offset % 64 == 0 for b in blobs)
    large = [b for b in blobs if b.length >= 1 << 20]
    assert large
    assert all(b.offset % 4096 == 0 for b in large)


def test_guards_are_kept(tmp_path: Path) -> None:
    """Sizes that must fit are checked, also for nodes that passes took away."""
    made = body(
        "g (float[a, 4] x, float[b, 4] y, int64[2] s) => (float[c, 4] z) "
        "{ t = Add (x, y) u = Identity (t) z = Add (u, t) }"
    )
    path = embedded(tmp_path, made)
    feeds = {"x": random(2, 4), "y": random(3, 4), "s": np.array([1, 2])}
    with pytest.raises(InvalidArgument) as plain:
        opened(path).run(None, feeds)
    packed(path)
    session = opened(path)
    assert uses_pack(session)
    with pytest.raises(InvalidArgument) as error:
        session.run(None, feeds)
    assert error.value.what == plain.value.what


def test_a_broken_assumption_compiles_again(tmp_path: Path) -> None:
    made = body("g (float[a, 4] x, float[b, 4] y) => (float[c, 4] z) { z = Add (x, y) }")
    path = embedded(tmp_path, made)
    packed(path)
    session = opened(path)
    assert uses_pack(session)
    x, y = random(1, 4), random(3, 4)
    same(session.run(None, {"x": x, "y": y}), [x + y])


def test_profile_has_the_stage(tmp_path: Path) -> None:
    path = embedded(tmp_path)
    packed(path)
    options = sardonyx.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = sardonyx.InferenceSession(path, options)
    names = {e["name"] for e in json.loads(Path(session.end_profiling()).read_bytes())}
    assert {"stage_pack", "stage_place", "stage_program"} <= names
    assert not names & {"stage_optimize", "stage_lower", "stage_load"}


def test_cache_is_written_and_read(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    path = embedded(tmp_path)
    first = opened(path, pack_cache=str(cache))
    assert "write_pack" in stages(first)
    (pack,) = cache.glob("*.pack")
    second = opened(path, pack_cache=str(cache))
    assert uses_pack(second)
    same(second.run(None, LAYERS), first.run(None, LAYERS))
    assert list(cache.glob("*.pack")) == [pack]
    assert sorted(os.listdir(cache)) == sorted(["checked", pack.name])
    from_bytes = opened(Path(path).read_bytes(), pack_cache=str(cache))
    assert uses_pack(from_bytes)
    same(from_bytes.run(None, LAYERS), first.run(None, LAYERS))
    assert not os.path.exists(f"{path}.pack")


def test_no_pack_is_written_by_default(tmp_path: Path) -> None:
    path = embedded(tmp_path)
    opened(path).run(None, LAYERS)
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_packs_can_be_ignored(tmp_path: Path) -> None:
    path = embedded(tmp_path)
    packed(path)
    assert not uses_pack(opened(path, use_pack="0"))


def test_bytes_that_may_change_are_not_packed(tmp_path: Path) -> None:
    data = bytearray(Path(embedded(tmp_path)).read_bytes())
    opened(data, pack_cache=str(tmp_path)).run(None, LAYERS)
    opened(memoryview(data).toreadonly(), pack_cache=str(tmp_path)).run(None, LAYERS)
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_sessions_with_replaced_initializers_use_no_pack(tmp_path: Path) -> None:
    path = embedded(tmp_path)
    packed(path)
    options = sardonyx.SessionOptions()
    options.add_initializer("bias", np.zeros(256, np.float32))
    session = sardonyx.InferenceSession(path, options)
    assert not uses_pack(session)
    assert session.run(None, LAYERS)[0].tobytes() != opened(path).run(None, LAYERS)[0].tobytes()


def test_packed_weights_are_views_of_the_pack(tmp_path: Path) -> None:
    path = embedded(tmp_path)
    packed(path)
    session = opened(path)
    arrays = session._compiled.program.layouts._arrays
    kept = {w.kind: a for w, a in arrays.items() if w.kind}
    assert kept
    for array in kept.values():
        assert not array.flags.owndata
        assert not array.flags.writeable


def saving(path: str, target: str, **extra: str) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = target
    key = "session.save_external_prepacked_constant_initializers"
    options.add_session_config_entry(key, "1")
    for name, value in extra.items():
        key = f"session.optimized_model_external_initializers_{name}"
        options.add_session_config_entry(key, value)
    return sardonyx.InferenceSession(path, options)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_saved_model_has_its_pack(level: str, tmp_path: Path) -> None:
    path, target = embedded(tmp_path), str(tmp_path / "optimized.onnx")
    want = saving(path, target, file_name="o.data", min_size_in_bytes="1000").run(None, LAYERS)
    found = {"optimized.onnx", "o.data", "optimized.onnx.pack"}
    assert found <= set(os.listdir(tmp_path))
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = getattr(sardonyx.GraphOptimizationLevel, level)
    session = sardonyx.InferenceSession(target, options)
    assert uses_pack(session)
    np.testing.assert_allclose(session.run(None, LAYERS)[0], want[0], 1e-5, 1e-5)


def test_prepacked_entries_of_onnxruntime_are_ignored(tmp_path: Path) -> None:
    path, target = embedded(tmp_path), str(tmp_path / "ort.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = target
    for key, value in (
        ("save_external_prepacked_constant_initializers", "1"),
        ("optimized_model_external_initializers_file_name", "ort.data"),
        ("optimized_model_external_initializers_min_size_in_bytes", "1000"),
    ):
        options.add_session_config_entry(f"session.{key}", value)
    want = onnxruntime.InferenceSession(path, options).run(None, LAYERS)
    saved = onnx.load(target, load_external_data=False)
    keys = {e.key for t in saved.graph.initializer for e in t.external_data}
    assert any(k.startswith("prepacked_") for k in keys)
    got = opened(target).run(None, LAYERS)
    np.testing.assert_allclose(got[0], want[0], 1e-4, 1e-4)


def cli(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(["pack", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = embedded(tmp_path)
    said = cli(capsys, path)
    assert said["pack"] == f"{path}.pack"
    assert said["bytes"] == os.path.getsize(f"{path}.pack")
    assert uses_pack(opened(path))
    assert cli(capsys, path, "--verify")["is_sound"] is True
    assert main(["pack", path, "-o", str(tmp_path / "other.pack")]) == 0
    assert "other.pack: " in capsys.readouterr().out
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["missing.onnx"], 1, "no file"),
        (["{model}", "-o", "nowhere/x.pack"], 2, "there is no folder"),
        (["{model}", "--standalone"], 2, "--standalone needs -o"),
        (["{model}", "--standalone", "-o", "{model}"], 2, "is the model itself"),
        (["{model}", "-o", "{model}"], 1, "a file of the model itself"),
        (["{model}", "--verify"], 1, "there is no pack"),
    ],
)
def test_command_refuses(
    arguments: list[str],
    status: int,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = embedded(tmp_path)
    assert main(["pack", *(a.format(model=path) for a in arguments)]) == status
    assert says in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["model.onnx"]


@pytest.mark.parametrize("place", [embedded, external])
def test_standalone(place: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    path, alone = place(here), str(there / "alone.onnx")
    want = opened(path).run(None, LAYERS)
    weights = sum(len(t.raw_data) for t in layers().graph.initializer)
    said = cli(capsys, path, "--standalone", "-o", alone)
    shutil.rmtree(here)
    assert sorted(os.listdir(there)) == ["alone.onnx", "alone.onnx.pack"]
    assert not said["doubled"]
    assert said["bytes"] < weights + 40_000  # each weight once, padding, index and graph
    session = opened(alone, pack_verify="1")
    same(session.run(None, LAYERS), want)
    assert session.get_inputs()[0].shape == ["batch", "n"]
    assert main(["info", alone, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes_before"] == 3
    assert session.get_modelmeta().custom_metadata_map == {"who": "tests"}
    os.unlink(f"{alone}.pack")
    with pytest.raises(InvalidGraph, match="are in its pack"):
        opened(alone)


def test_a_weight_in_two_layouts_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = layers()
    made.graph.node.append(helper.make_node("Gather", ["w", "ids"], ["g"]))
    made.graph.output.append(helper.make_tensor_value_info("g", 1, None))
    path = embedded(tmp_path, made)
    assert main(["pack", path, "--standalone", "-o", str(tmp_path / "alone.onnx")]) == 0
    assert "128x256 is stored in two layouts: 131 KB more" in capsys.readouterr().out


def test_a_standalone_model_says_when_sizes_differ(tmp_path: Path) -> None:
    made = body("g (float[a, 4] x, float[b, 4] y) => (float[c, 4] z) { z = Add (x, y) }")
    path, alone = embedded(tmp_path, made), str(tmp_path / "alone.onnx")
    assert main(["pack", path, "--standalone", "-o", alone]) == 0
    with pytest.raises(InvalidArgument, match="was packed for equal sizes"):
        opened(alone).run(None, {"x": random(1, 4), "y": random(3, 4)})

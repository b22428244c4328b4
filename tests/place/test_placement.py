"""Placement of nodes and copies between devices: preferences, limits, boundaries, bodies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.graph.op import INTERNAL

pytest.importorskip("torch")
TORCH = ("TorchExecutionProvider", {"device": "cpu"})
HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
CHAIN = (
    HEAD
    + """(float[2,4] x) => (float[2,4] y)
<float[4,4] u = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}, float[4,4] v = {1,0,2,0,1,0,2,0,1,0,1,0,1,1,1,1}>
{ [enc_0] a = MatMul(x, u) [enc_1] b = Elu(a) [dec_0] c = MatMul(b, v) [dec_1] y = Tanh(c) }"""
)
X = np.arange(8, dtype=np.float32).reshape(2, 4) / 8


def session_of(
    text: str, providers: Any = (TORCH,), **entries: str
) -> tuple[sardonyx.InferenceSession, sardonyx.InferenceSession]:
    """A session with these wishes, and one of the CPU alone."""
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    model = parser.parse_model(text).SerializeToString()
    return (
        sardonyx.InferenceSession(model, options, providers=list(providers)),
        sardonyx.InferenceSession(model),
    )


def on_device(session: sardonyx.InferenceSession) -> set[str]:
    """Names of nodes that run by torch, copies left out."""
    where = session._compiled.placement.where
    return {
        n.name for n, p in where.items() if p.name == "torch" and n.op.key != (INTERNAL, "Copy")
    }


def copies(session: sardonyx.InferenceSession) -> list[str]:
    """The copies between devices, as "value to device"."""
    nodes = (n for n in session._compiled.placement.where if n.op.key == (INTERNAL, "Copy"))
    return sorted(f"{n.inputs[0].name} to {n.attrs['to'].decode()}" for n in nodes if n.inputs[0])


def same(made: Any, feed: dict[str, Any]) -> None:
    session, cpu = made
    for got, want in zip(session.run(None, feed), cpu.run(None, feed), strict=True):
        if isinstance(want, list):
            assert len(got) == len(want)
            pairs = list(zip(got, want, strict=True))
        else:
            pairs = [(got, want)]
        for a, b in pairs:
            if b.dtype == object:
                assert a.tolist() == b.tolist()
            else:
                np.testing.assert_allclose(a, b, 1e-5, 1e-6)


ALL = {"enc_0", "enc_1", "dec_0", "dec_1"}
WISHES = {
    "none": ({}, ALL),
    "ours": ({"sardonyx__placement": "enc_*=torch;*=cpu"}, {"enc_0", "enc_1"}),
    "first counts": ({"sardonyx__placement": "dec_0=torch; dec_*=cpu"}, ALL - {"dec_1"}),
    "whole name": ({"sardonyx__placement": "enc_1=cpu"}, ALL - {"enc_1"}),
    "by name, as onnxruntime": (
        {"session__name_based_layer_assignment": "cpu(dec)"}, {"enc_0", "enc_1"},
    ),
    "exactly": ({"session__layer_assignment_settings": "cpu(=dec_1)"}, ALL - {"dec_1"}),
    "none for the device": ({"session__resource_cuda_partitioning_settings": "0,"}, set()),
    "no limit": ({"session__resource_cuda_partitioning_settings": ",stats.csv"}, ALL),
}  # fmt: skip


@pytest.mark.parametrize(("entries", "there"), WISHES.values(), ids=WISHES)
def test_requested_placements(entries: dict[str, str], there: set[str]) -> None:
    made = session_of(CHAIN, **entries)
    assert on_device(made[0]) == there
    same(made, {"x": X})


WRONG = {
    "no provider": ({"sardonyx__placement": "enc_*"}, "encoder/\\*=cuda"),
    "no names": ({"session__name_based_layer_assignment": "cpu"}, "gpu\\(layers"),
    "no number": ({"session__resource_cuda_partitioning_settings": "2GB,"}, "limit in KB"),
}


@pytest.mark.parametrize(("entries", "match"), WRONG.values(), ids=WRONG)
def test_wrong_placement_requests(entries: dict[str, str], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        session_of(CHAIN, **entries)


@pytest.mark.parametrize(
    ("limit", "there"),
    [
        (64, set()),  # three quarters are for weights, and each of these takes all
        (100, {"enc_0", "enc_1"}),
        (400, ALL),
    ],
)
def test_a_limit_places_what_fits(limit: int, there: set[str]) -> None:
    """Nodes after one that did not fit stay on its device, so that there is one boundary."""
    options = {"device": "cpu", "gpu_mem_limit": str(limit)}
    made = session_of(CHAIN, [("TorchExecutionProvider", options)])
    assert on_device(made[0]) == there
    assert len(copies(made[0])) == (limit == 100)
    if limit != 100:  # where the activations of a run do not fit beside the weights
        same(made, {"x": X})


def test_the_cpu_may_be_forbidden() -> None:
    key = {"session__disable_cpu_ep_fallback": "1"}
    assert on_device(session_of(CHAIN, **key)[0]) == ALL
    with pytest.raises(Fail, match="1 of 4 nodes run on the CPU") as caught:
        session_of(CHAIN, **key, sardonyx__placement="dec_*=cpu")
    assert "assigned to cpu by the pattern dec_*" in str(caught.value)


def test_what_a_device_refuses_runs_on_the_cpu_natively() -> None:
    """Convolutions and pools are lowered as for a session of the CPU."""
    text = (
        HEAD
        + """(float[1,4,8,8] x) => (float[1,4,1,1] y)
    <float[4,4,1,1] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}>
    { [c] a = Conv(x, w) [r] b = Relu(a) [p] d = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)
      [g] y = GlobalAveragePool(d) }"""
    )
    made = session_of(text, sardonyx__placement="c=cpu;r=cpu;p=cpu")
    assert made[0]._compiled.program.python_steps == 0
    assert on_device(made[0]) == {"g"}
    same(made, {"x": np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 4, 8, 8)})


def test_attention_of_halves_runs_on_the_cpu_natively() -> None:
    """It was made for the device, with a mask of halves."""
    text = (
        HEAD
        + """(float16[1,2,n,8] q, float16[1,2,m,8] k, float16[1,2,m,8] v, float16[n,m] mask)
    => (float16[1,2,n,8] y) { t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) a = Add(s, mask)
    w = Softmax(a) [y] y = MatMul(w, v) }"""
    )
    made = session_of(text, sardonyx__placement="*=cpu")
    assert [n.op.name for n in made[0]._compiled.placement.where].count("Attention") == 1
    assert made[0]._compiled.program.python_steps == 0
    rng = np.random.default_rng(0)
    feed = {n: rng.standard_normal((1, 2, 3, 8)).astype(np.float16) for n in "qkv"}
    feed["mask"] = np.triu(np.full((3, 3), -np.inf, np.float16), 1)
    (got,), (want,) = (s.run(None, feed) for s in made)
    np.testing.assert_allclose(got, want, 4e-3, 4e-3)


BODIES = {
    "a branch on the device with nodes of the host": (
        """(float[2,2] x, bool c) => (float[2,2] y) { y = If (c) <
        then_branch = t () => (float[2,2] p) { [h] q = Exp(x) [o] p = MatMul(q, q) },
        else_branch = e () => (float[2,2] r) { s = Sqrt(x) [d] r = MatMul(s, x) }> }""",
        "h=cpu", {"c": np.array(True)}, {"d", "o"}, {"h"},
    ),
    "a branch that gives a constant, one that gives what it captures": (
        """(float[2,2] x, bool c) => (float[2,2] y) <float[2,2] k = {1, 2, 3, 4}>
        { [n] z = Neg(x) y = If (c) <
        then_branch = t () => (float[2,2] p) { p = Identity(k) },
        else_branch = e () => (float[2,2] r) { [m] a = MatMul(z, z) r = Add(z, a) }> }""",
        "n=cpu", {"c": np.array(True)}, {"m"}, {"n"},
    ),
    "a loop whose state crosses a border": (
        """(int64 n, float[2,2] x) => (float[2,2] y, float[k,2,2] all) <bool yes = {1}>
        { y, all = Loop (n, yes, x) <body = b (int64 i, bool c, float[2,2] s) =>
        (bool d, float[2,2] t, float[2,2] u)
        { d = Identity(c) [h] e = Sigmoid(s) [g] t = MatMul(e, e) u = Neg(t) }> }""",
        "h=cpu", {"n": np.array(3)}, {"g"}, {"h"},
    ),
    "control flow on the host": (
        """(float[2,2] x, bool c) => (float[2,2] y) { [n] z = Sqrt(x) [i] y = If (c) <
        then_branch = t () => (float[2,2] p) { [h] q = Exp(z) p = MatMul(q, q) },
        else_branch = e () => (float[2,2] r) { r = Abs(z) }> }""",
        "i=cpu", {"c": np.array(True)}, {"n"}, {"i", "h"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "wish", "feed", "there", "here"), BODIES.values(), ids=BODIES)
def test_bodies(
    text: str, wish: str, feed: dict[str, Any], there: set[str], here: set[str]
) -> None:
    made = session_of(HEAD + text, sardonyx__placement=wish)
    found = on_device(made[0])
    assert there <= found
    assert not here & found
    same(made, {"x": np.float32([[1, 4], [2, 3]]), **feed})


BORDERS = {
    "an input that both sides read": (
        "(float[2] x) => (float[2] y, float[2] z) { [d] y = Exp(x) [h] z = Sqrt(x) }",
        "h=cpu", ["x to torch-cpu"],
    ),
    "an output that is an input": (
        "(float[2] x) => (float[2] y, float[2] x) { [d] y = Exp(x) }", "", ["x to torch-cpu"],
    ),
    "there and back": (
        "(float[2] x) => (float[2] y) { [d] a = Exp(x) [h] b = Sqrt(a) [e] y = Abs(b) }",
        "h=cpu", ["a to cpu", "b to torch-cpu"],
    ),
    "one copy for many readers": (
        """(float[2] x) => (float[2] y, float[2] z)
        { [d] a = Exp(x) [h] y = Sqrt(a) [i] z = Erf(a) }""",
        "h=cpu;i=cpu", ["a to cpu"],
    ),
    "sequences stay on the host": (
        "(float[2] x) => (seq(float[2]) y) { [d] a = Exp(x) [h] y = SequenceConstruct(a, a) }",
        "", ["a to cpu"],
    ),
    "strings stay on the host": (
        "(float[2] x) => (string[2] y) { [d] a = Ceil(x) [h] y = Cast<to=8>(a) }",
        "", ["a to cpu"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "wish", "copied"), BORDERS.values(), ids=BORDERS)
def test_boundary_copies(text: str, wish: str, copied: list[str]) -> None:
    made = session_of(HEAD + text, sardonyx__placement=wish)
    assert copies(made[0]) == copied
    same(made, {"x": np.float32([1, 4])})


def test_reported_placement() -> None:
    made, _ = session_of(
        CHAIN, sardonyx__placement="dec_1=cpu", session__record_ep_graph_assignment_info="1"
    )
    assert made.get_providers() == ["TorchExecutionProvider", "CPUExecutionProvider"]
    told = made.get_provider_graph_assignment_info()
    groups = [(g.ep_name, [n.name for n in g.get_nodes()]) for g in told]
    assert groups == [
        ("TorchExecutionProvider", ["enc_0", "enc_1", "dec_0", "copy c to cpu"]),
        ("CPUExecutionProvider", ["dec_1"]),
    ]


def test_profiles_name_the_nodes_of_a_region(tmp_path: Path) -> None:
    options = sardonyx.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "p")
    session = sardonyx.InferenceSession(parser.parse_model(CHAIN), options, providers=[TORCH])
    session.run(None, {"x": X})
    events = json.loads(Path(session.end_profiling()).read_text())
    (event,) = [e for e in events if e["cat"] == "Node"]
    assert event["args"]["nodes"] == ["enc_0", "enc_1", "dec_0", "dec_1"]
    assert event["args"]["provider"] == "torch"
    assert event["args"]["output_type_shape"] == [{"float32": [2, 4]}]
    assert event["args"]["output_size"] == "32"

"""The rewrite driver: folding, merging and pruning, and what it must not change."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.graph.const import Recipe
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse
from sardonyx.ort.enums import GraphOptimizationLevel as Level
from sardonyx.passes import PassOptions, conv_gemm, lower, optimize
from tests.graphs import random_feeds, rewritten, run_graph


def ops(graph: object) -> list[str]:
    return [n.op.name for n in graph.sorted_nodes()]  # type: ignore[attr-defined]


CONV = "in x: f32[B,3,6,6]\nconst w: f32[4,3,3,3]\nconst c: f32[4]\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (CONV + "a = Conv(x, w, c)\nm = Mul(a, 2.0)\ny = Add(m, 1.0)\nout y", ["Conv"]),
        (
            CONV + "const s: f32[4]\nconst v: f32[4]\na = Conv(x, w)\nq = Mul(v, v)\n"
            "y = BatchNormalization(a, s, c, c, q)\nout y",
            ["Conv"],
        ),
        (CONV + "const k: f32[4,1,1]\na = Conv(x, w)\ny = Mul(k, a)\nout y", ["Conv"]),
        (CONV + "a = Conv(x, w, c)\nr = Relu(a)\ny = Neg(r)\nout y", ["FusedConv", "Neg"]),
        (CONV + "a = Conv(x, w)\nr = Clip(a, 0.0, 6.0)\ny = Neg(r)\nout y", ["FusedConv", "Neg"]),
        (
            CONV + "a = Conv(x, w)\nr = LeakyRelu(a, alpha=0.2)\ny = Neg(r)\nout y",
            ["FusedConv", "Neg"],
        ),
    ],
)
def test_fusion_into_conv(text: str, left: list[str]) -> None:
    before, after = parse(text), rewritten(text, (*conv_gemm.BASIC, *conv_gemm.EXTENDED))
    assert ops(after) == left
    feeds = random_feeds(before)
    want, got = run_graph(before, feeds), run_graph(after, feeds)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-5)


def test_folding_reads_no_weights() -> None:
    graph = rewritten(
        "in x: f32[B,512]\nconst w: f32[512,512]\nt = Transpose(w)\ny = MatMul(x, t)\nout y", ()
    )
    assert ops(graph) == ["MatMul"]
    (node,) = graph.nodes
    const = node.inputs[1].const  # type: ignore[union-attr]
    assert isinstance(const, Recipe)
    assert not const.is_read
    assert not any(c.is_read for c in const.inputs if c is not None and not c.is_small)


def test_folding_does_not_copy_a_shared_weight() -> None:
    graph = rewritten(
        "in i: i64[B]\nin x: f32[B,512]\nconst w: f32[1024,512]\ne = Gather(w, i)\n"
        "t = Transpose(w)\na = Add(x, e)\ny = MatMul(a, t)\nout y",
        (),
    )
    assert "Transpose" in ops(graph)


def test_short_shared_constants_are_folded() -> None:
    """A weight that is divided by its norm: the norm is not a copy, and has no other reader."""
    graph = rewritten(
        "in x: f32[B,1024]\nconst v: f32[1024,512]\nn = ReduceL2(v, [0])\nu = Div(v, n)\n"
        "y = MatMul(x, u)\nout y",
        (),
    )
    assert ops(graph) == ["MatMul"]


def test_folding_stops_at_the_limit() -> None:
    text = "in x: f32[B]\nz = ConstantOfShape([4194304])\ns = ReduceMax(z)\ny = Add(x, s)\nout y"
    assert "ConstantOfShape" in ops(rewritten(text, ()))


def test_shape_arithmetic_folds() -> None:
    graph = parse(
        "in x: f32[B,12,64]\ns = Shape(x)\nb = Gather(s, [0])\nt = Concat(b, [-1], axis=0)\n"
        "y = Reshape(x, t)\nout y"
    )
    optimize(graph, PassOptions())
    lower(graph, PassOptions())
    verify(graph)
    assert ops(graph) == ["Sizes", "Reshape"]
    x = np.ones((5, 12, 64), np.float32)
    assert run_graph(graph, {"x": x})[0].shape == (5, 768)


def test_equal_nodes_become_one() -> None:
    graph = rewritten(
        "in x: f32[B]\na = Mul(x, 2.0)\nb = Mul(x, 2.0)\nc = Mul(x, 3.0)\ny = Sum(a, b, c)\nout y",
        (),
    )
    assert sorted(ops(graph)) == ["Mul", "Mul", "Sum"]


def test_random_nodes_stay_apart() -> None:
    graph = rewritten(
        "in x: f32[B]\na = RandomNormalLike(x)\nb = RandomNormalLike(x)\ny = Add(a, b)\nout y", ()
    )
    assert ops(graph).count("RandomNormalLike") == 2


def test_a_known_condition_picks_its_branch() -> None:
    graph = rewritten(
        "in x: f32[B]\nt = Equal(1, 1)\ny = If(t) { then_branch: { a = Neg(x) out a } "
        "else_branch: { b = Abs(x) out b } }\nout y",
        (),
    )
    assert ops(graph) == ["Neg"]


def test_disabled_optimizers_stay_off() -> None:
    text = CONV + "a = Conv(x, w)\ny = Relu(a)\nout y"
    for name in ("conv_activation", "ConvActivationFusion"):
        assert ops(rewritten(text, conv_gemm.EXTENDED, frozenset((name,)))) == ["Conv", "Relu"]


@pytest.mark.parametrize(
    ("level", "portable", "lowered"),
    [
        (
            Level.ORT_DISABLE_ALL,
            ["Identity", "Conv", "Relu"],
            ["Identity", "Transpose", "Conv", "Relu", "Transpose"],
        ),
        (Level.ORT_ENABLE_BASIC, ["Conv", "Relu"], ["Transpose", "Conv", "Relu", "Transpose"]),
        (Level.ORT_ENABLE_EXTENDED, ["FusedConv"], ["Transpose", "Conv", "Transpose"]),
        (Level.ORT_ENABLE_ALL, ["FusedConv"], ["Transpose", "Conv", "Transpose"]),
    ],
)
def test_levels(level: Level, portable: list[str], lowered: list[str]) -> None:
    """Removal and fusion depend on the level; the layout that kernels require does not."""
    graph = parse(CONV + "i = Identity(x)\na = Conv(i, w)\ny = Relu(a)\nout y")
    optimize(graph, PassOptions(level=level))
    assert ops(graph) == portable
    lower(graph, PassOptions(level=level))
    assert ops(graph) == lowered

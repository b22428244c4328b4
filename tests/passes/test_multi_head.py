"""Attention ops decomposed into kernels compute the same; unsupported ones stay."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.graph.graph import Graph
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse
from sardonyx.passes.decompose import decompose_ops
from sardonyx.passes.replace import prune
from tests.graphs import random_feeds, run_graph

QKV = "in q: f32[B,S,16]\nin k: f32[B,T,16]\nin v: f32[B,T,8]\n"
SELF = "in q: f32[B,2,S,8]\nin k: f32[B,2,S,8]\nin v: f32[B,2,S,6]\n"
PAST = "in pk: f32[B,2,P,8]\nin pv: f32[B,2,P,6]\n"
PROJECTED = "in x: f32[B,S,6]\nin w: f32[6,48]\nin c: f32[48]\n"
MANY = "com.microsoft.MultiHeadAttention"
KEPT = {"Attention", "Append", "Spans"}  # those of ours that compute


def lowered(text: str) -> Graph:
    """The graph of a text after the pass, which computes the same as before."""
    before, after = parse(text), parse(text)
    decompose_ops(after)
    prune(after)
    verify(after)
    assert [v.name for v in after.outputs] == [v.name for v in before.outputs]
    feeds = random_feeds(before)
    for want, got in zip(run_graph(before, feeds), run_graph(after, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return after


def ours(graph: Graph) -> list[str]:
    names = [n.op.name for n in graph.sorted_nodes() if n.op.domain == "sardonyx"]
    return [n for n in names if n in KEPT]


LOWERED = {
    "many heads": (QKV + f"y = {MANY}(q, k, v, num_heads=2)\nout y", ["Attention"]),
    "lengths": (
        QKV + f"in n: i32[B]\ny = {MANY}(q, k, v, _, n, num_heads=2)\nout y",
        ["Attention"],
    ),
    "a mask, and keys that come back": (
        QKV + f"in m: i32[B,S,T]\ny, a, b = {MANY}(q, k, v, _, m, num_heads=2)\nout y, a, b",
        ["Attention"],
    ),
    "standard": (SELF + "y = Attention(q, k, v, is_causal=1)\nout y", ["Attention"]),
    "standard, with a past": (
        SELF + PAST + "y, a, b = Attention(q, k, v, _, pk, pv, is_causal=1)\nout y, a, b",
        ["Append", "Attention"],
    ),
    "standard, with counts": (
        SELF.replace("S", "5") + "in n: i64[B]\ny = Attention(q, k, v, _, _, _, n)\nout y",
        ["Spans", "Attention"],
    ),
    "standard, with a mask": (
        SELF + "in m: f32[S,S]\ny = Attention(q, k, v, m, left_window_size=1)\nout y",
        ["Attention"],
    ),
    "projected": (
        PROJECTED + "in m: i32[B]\n"
        "y, p = com.microsoft.Attention(x, w, c, m, num_heads=2, unidirectional=1)\nout y, p",
        ["Attention"],
    ),
    "projected, with masks by beginnings": (
        PROJECTED.replace("B", "3") + "in m: i32[6]\n"
        "y = com.microsoft.Attention(x, w, c, m, num_heads=2)\nout y",
        ["Attention"],
    ),
}


@pytest.mark.parametrize("name", LOWERED)
def test_lowered(name: str) -> None:
    text, wanted = LOWERED[name]
    assert ours(lowered(text)) == wanted


CROSS = SELF.replace("k: f32[B,2,S", "k: f32[B,2,T").replace("v: f32[B,2,S", "v: f32[B,2,T")
STAYS = {
    "scores that are shown": QKV + f"y, a, b, s = {MANY}(q, k, v, num_heads=2)\nout y, s",
    "heads of unknown size": QKV.replace("16", "H").replace("8", "9")
    + f"y = {MANY}(q, k, v, num_heads=3)\nout y",
    "a bias of packed parts": "in q: f32[B,S,2,3,8]\nin c: f32[48]\n"
    f"y = {MANY}(q, _, _, c, num_heads=2)\nout y",
    "rows elsewhere than new keys": CROSS
    + PAST
    + "y = Attention(q, k, v, _, pk, pv, is_causal=1)\nout y",
    "a softmax in float64": SELF + "y = Attention(q, k, v, softmax_precision=11)\nout y",
    "float64": SELF.replace("f32", "f64") + "y = Attention(q, k, v)\nout y",
    "a mask of one column": SELF + "in m: f32[S,1]\ny = Attention(q, k, v, m)\nout y",
    "angles of its own": PROJECTED
    + "y = com.microsoft.Attention(x, w, c, num_heads=2, do_rotary=1)\nout y",
}


@pytest.mark.parametrize("name", STAYS)
def test_not_rewritten(name: str) -> None:
    assert not ours(lowered(STAYS[name]))

"""Attention fusion: what exporters write becomes one node; what is not attention stays."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.graph.graph import Graph
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse
from sardonyx.passes.attention import fuse_attention
from sardonyx.passes.replace import prune
from sardonyx.passes.shape_arithmetic import lower_sizes
from tests.graphs import canonical, random_feeds, run_graph

QKV = "in q: f32[B,2,S,8]\nin k: f32[B,2,T,8]\nin v: f32[B,2,T,6]\n"
TRANSPOSE = "t = Transpose(k, perm=[0, 1, 3, 2])\n"
ONE = "sardonyx.Attention(q, k, v"


def fused(text: str) -> Graph:
    """The graph of a text after the pass, which computes the same as before."""
    before, after = parse(text), parse(text)
    lower_sizes(after)
    fuse_attention(after)
    prune(after)
    verify(after)
    assert [v.name for v in after.outputs] == [v.name for v in before.outputs]
    feeds = random_feeds(before)
    for want, got in zip(run_graph(before, feeds), run_graph(after, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    return after


def fuses(text: str, into: str) -> None:
    """A text becomes another one."""
    assert canonical(fused(text)) == canonical(parse(into))


FORMS = {  # by the scale that they come to
    "bare": "s = MatMul(q, t)\np = Softmax(s)",
    "after, scale=0.5": "s = MatMul(q, t)\na = Mul(s, 0.5)\np = Softmax(a)",
    "divided, scale=0.25": "s = MatMul(q, t)\na = Div(s, 4.0)\np = Softmax(a)",
    "before, scale=0.25": "a = Mul(q, 0.5)\nb = Mul(0.5, t)\ns = MatMul(a, b)\n"
    "p = Softmax(s, axis=3)",
    "keys, scale=0.5": "a = Mul(k, 0.5)\nb = Transpose(a, perm=[0, 1, 3, 2])\ns = MatMul(q, b)\n"
    "p = Softmax(s)",
    "fused, scale=0.5": "s = com.microsoft.FusedMatMul(q, k, transB=1, alpha=0.5)\np = Softmax(s)",
}


@pytest.mark.parametrize("name", FORMS)
def test_variants(name: str) -> None:
    scale = "".join(name.partition(",")[1:])
    text = QKV + TRANSPOSE + FORMS[name] + "\ny = MatMul(p, v)\nout y"
    fuses(text, QKV + f"y = {ONE}{scale})\nout y")


def test_keys_transposed_in_a_stack() -> None:
    shape = QKV.replace("B", "4").replace("T", "5")
    fuses(
        shape + "a = Reshape(k, [8, 5, 8])\nb = Transpose(a, perm=[0, 2, 1])\n"
        "t = Reshape(b, [4, 2, 8, 5])\ns = MatMul(q, t)\np = Softmax(s)\ny = MatMul(p, v)\nout y",
        shape + f"y = {ONE})\nout y",
    )


def test_keys_without_transpose() -> None:
    """Keys without a Transpose get one, and a Transpose of more axes keeps the others."""
    text = "in q: f32[B,2,S,8]\nin t: f32[B,2,8,T]\nin v: f32[B,2,T,6]\n"
    fuses(
        text + "s = MatMul(q, t)\np = Softmax(s)\ny = MatMul(p, v)\nout y",
        text + "k = Transpose(t, perm=[0, 1, 3, 2])\n" + f"y = {ONE})\nout y",
    )
    text = "in q: f32[B,2,S,8]\nin x: f32[B,T,2,8]\nin v: f32[B,2,T,6]\n"
    fuses(
        text + "t = Transpose(x, perm=[0, 2, 3, 1])\ns = MatMul(q, t)\np = Softmax(s)\n"
        "y = MatMul(p, v)\nout y",
        text + "k = Transpose(x, perm=[0, 2, 1, 3])\n" + f"y = {ONE})\nout y",
    )


def test_masks() -> None:
    masked = QKV + "in m: f32[B,1,1,T]\n"
    for order in ("s, m", "m, s"):
        fuses(
            masked
            + TRANSPOSE
            + f"s = MatMul(q, t)\na = Add({order})\np = Softmax(a)\ny = MatMul(p, v)\n"
            "out y",
            masked + f"y = {ONE}, m)\nout y",
        )
    two = masked + "in n: f32[S,T]\n"
    fuses(
        two + TRANSPOSE + "s = MatMul(q, t)\na = Add(s, m)\nb = Add(a, n)\np = Softmax(b)\n"
        "y = MatMul(p, v)\nout y",
        two + f"a = Add(m, n)\ny = {ONE}, a)\nout y",
    )
    where = QKV + "in c: bool[S,T]\n"
    fuses(
        where + TRANSPOSE + "s = MatMul(q, t)\na = Where(c, s, -1e38)\np = Softmax(a)\n"
        "y = MatMul(p, v)\nout y",
        where + f"m = Where(c, 0.0, -1e38)\ny = {ONE}, m)\nout y",
    )
    fuses(
        where + TRANSPOSE + "s = MatMul(q, t)\na = Where(c, -1e38, s)\np = Softmax(a)\n"
        "y = MatMul(p, v)\nout y",
        where + f"m = Where(c, -1e38, 0.0)\ny = {ONE}, m)\nout y",
    )
    both = masked + "in c: bool[S,T]\n"
    fuses(
        both + TRANSPOSE + "s = MatMul(q, t)\na = Add(s, m)\nb = Where(c, a, -3.4e38)\n"
        "p = Softmax(b)\ny = MatMul(p, v)\nout y",
        both + f"w = Where(c, m, -3.4e38)\ny = {ONE}, w)\nout y",
    )


def test_scaled_masks() -> None:
    masked = QKV + "in m: f32[B,1,1,T]\n"
    fuses(
        masked + TRANSPOSE + "s = MatMul(q, t)\na = Add(s, m)\nb = Mul(a, 2.0)\np = Softmax(b)\n"
        "y = MatMul(p, v)\nout y",
        masked + f"n = Mul(m, 2.0)\ny = {ONE}, n, scale=2.0)\nout y",
    )


def test_masks_of_merged_heads() -> None:
    text = "in q: f32[4,S,8]\nin k: f32[4,T,8]\nin v: f32[4,T,6]\nin m: f32[2,1,S,T]\n"
    text += "t = Transpose(k, perm=[0, 2, 1])\ns = MatMul(q, t)\na = Reshape(s, [2, 2, -1, 5])\n"
    text += "b = Add(a, m)\nc = Reshape(b, [4, -1, 5])\np = Softmax(c)\ny = MatMul(p, v)\nout y"
    want = parse(text.replace("T]", "5]").replace("T,", "5,"))
    prune(want)
    assert canonical(fused(text.replace("T]", "5]").replace("T,", "5,"))) == canonical(want)


def test_masks_of_groups_of_heads() -> None:
    """A mask that differs between the groups of a Reshape is none of the heads after the next."""
    text = "in q: f32[2,4,3,8]\nin k: f32[2,4,8,5]\nin v: f32[2,4,5,6]\nin m: f32[2,1,3,5]\n"
    text += "s = MatMul(q, k)\na = Reshape(s, [2, 2, 2, 3, 5])\nb = Add(a, m)\n"
    text += "c = Reshape(b, [2, 4, 3, 5])\np = Softmax(c)\ny = MatMul(p, v)\nout y"
    assert "Attention" not in canonical(fused(text))
    shared = text.replace("m: f32[2,", "m: f32[1,")
    assert "Attention" in canonical(fused(shared))


def test_nan_rows_become_zero_and_rows_come_before_heads() -> None:
    text = QKV + "in m: f32[B,1,S,T]\n"
    fuses(
        text + TRANSPOSE + "s = MatMul(q, t)\na = Add(s, m)\np = Softmax(a)\ni = IsNaN(p)\n"
        "w = Where(i, 0.0, p)\no = MatMul(w, v)\ny = Transpose(o, perm=[0, 2, 1, 3])\nout y",
        text + f"y = {ONE}, m, nan_rows=1, rows_first=1)\nout y",
    )


REFUSED = {
    "another axis": "s = MatMul(q, t)\np = Softmax(s, axis=2)\ny = MatMul(p, v)\nout y",
    "weights are an output": "s = MatMul(q, t)\np = Softmax(s)\ny = MatMul(p, v)\nout y, p",
    "scores are an output": "s = MatMul(q, t)\np = Softmax(s)\ny = MatMul(p, v)\nout y, s",
    "weights on the right": "s = MatMul(q, t)\np = Softmax(s)\ny = MatMul(z, p)\nout y",
    "mask adds heads": "s = MatMul(q, t)\na = Add(s, n)\np = Softmax(a)\ny = MatMul(p, v)\nout y",
    "mask is no limit": "s = MatMul(q, t)\na = Where(c, s, -5.0)\np = Softmax(a)\n"
    "y = MatMul(p, v)\nout y",
    "mask adds queries": "s = MatMul(q, t)\na = Add(s, e)\np = Softmax(a)\ny = MatMul(p, v)\nout y",
    "no product before": "p = Softmax(m)\ny = MatMul(p, v)\nout y",
    "other values for NaN": "s = MatMul(q, t)\np = Softmax(s)\ni = IsNaN(p)\nw = Where(i, 1.0, p)\n"
    "y = MatMul(w, v)\nout y",
    "shared values": "s = MatMul(q, t)\np = Softmax(s)\ny = MatMul(p, r)\nout y",
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_subgraphs_are_not_fused(name: str) -> None:
    text = QKV + "in m: f32[B,1,S,T]\nin n: f32[B,2,2,S,T]\nin c: bool[S,T]\nin r: f32[T,6]\n"
    text = text + "in z: f32[B,2,6,S]\nin e: f32[1,1,9,T]\n" + TRANSPOSE + REFUSED[name]
    if name == "mask adds heads":
        text = text.replace("B", "2")
    if name == "mask adds queries":
        text = text.replace("S", "1").replace("1oftmax", "Softmax")
    want = parse(text)
    prune(want)
    assert canonical(fused(text)) == canonical(want)


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_float16_masks_are_float32(half: str) -> None:
    given = (QKV + "in m: f32[S,T]\n").replace("f32", half)
    text = given + TRANSPOSE + "s = MatMul(q, t)\na = Add(s, m)\np = Softmax(a)\n"
    text += "y = MatMul(p, v)\nout y"
    graph = parse(text)
    fuse_attention(graph)
    prune(graph)
    verify(graph)
    want = parse(given + f"w = Cast(m, to=f32)\ny = {ONE}, w)\nout y")
    assert canonical(graph) == canonical(want)

"""Lowering for devices: which nodes are fused, which are not, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import infer
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse
from sardonyx.passes import lower
from sardonyx.passes.options import PassOptions
from tests.graphs import random_feeds, run_graph

ROWS = "in x: f32[B,S,8]\nconst w: f32[8,8]\nconst v: f32[8,4]\nconst c: f32[8]\nconst g: f32[8]\n"
IMAGES = "in x: f32[B,3,6,6]\nin z: f32[B,4,4,4]\nconst w: f32[4,3,3,3]\nconst c: f32[4]\n"
NORM = "LayerNormalization({}, g, c, axis=-1)"
CASES = {
    "a bias": (ROWS + "a = MatMul(x, w)\ny = Add(a, c)\nout y", ["MatMul"]),
    "a bias that is not a constant": (
        ROWS + "in d: f32[8]\na = MatMul(x, w)\ny = Add(a, d)\nout y",
        ["MatMul", "Add"],
    ),
    "products of one input": (
        ROWS + "a = MatMul(x, w)\nb = MatMul(x, v)\ny = Relu(a)\nz = Tanh(b)\nout y, z",
        ["MatMul", "Split", "Relu", "Tanh"],
    ),
    "products of two inputs": (
        ROWS + "in u: f32[B,S,8]\na = MatMul(x, w)\nb = MatMul(u, w)\nout a, b",
        ["MatMul", "MatMul"],
    ),
    "a sum and its norm": (
        ROWS + f"in u: f32[B,S,8]\ns = Add(x, u)\ny = {NORM.format('s')}\nt = Relu(s)\nout y, t",
        ["SkipLayerNormalization", "Relu"],
    ),
    "a tensor with itself": (
        ROWS + f"s = Add(x, x)\ny = {NORM.format('s')}\nout y, s",
        ["SkipLayerNormalization"],
    ),
    "a sum that broadcasts": (
        ROWS + f"in u: f32[8]\ns = Add(x, u)\ny = {NORM.format('s')}\nout y",
        ["Add", "LayerNormalization"],
    ),
    "a residual block": (
        IMAGES + "a = Conv(x, w, c)\ns = Add(a, z)\ny = Relu(s)\nout y",
        ["FusedConv"],
    ),
    "a sum that is read twice": (
        IMAGES + "a = Conv(x, w, c)\ns = Add(a, z)\ny = Relu(s)\nout y, s",
        ["Conv", "Add", "Relu"],
    ),
    "elementwise ops": (
        ROWS + "a = Sigmoid(x)\nb = Mul(a, x)\ny = Add(b, c)\nout y",
        ["Chain"],
    ),
}


def lowered(text: str) -> Graph:
    graph = parse(text)
    infer(graph)
    lower(graph, PassOptions(for_device=True, device_fusion=True))
    verify(graph, deep=True)
    return graph


@pytest.mark.parametrize(("text", "left"), CASES.values(), ids=CASES)
def test_fused_nodes(text: str, left: list[str]) -> None:
    before, after = parse(text), lowered(text)
    assert sorted(n.op.name for n in after.nodes) == sorted(left)
    feeds = random_feeds(before)
    for want, got in zip(run_graph(before, feeds), run_graph(after, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


BITS = "bits=4, block_size=16, K=32, N={n}"
FEW = "in x: f32[B,S,32]\nconst g: f32[32]\nconst q: u8[{n},2,8]\nconst s: f32[{n},2]\n"
PRODUCT = "com.microsoft.MatMulNBits({x}, q, s, " + BITS + ")"
GATE = "a, b = Split(p, axis=-1, num_outputs=2)\ng1 = Sigmoid(a)\ng2 = Mul(a, g1)\n"


def few(n: int, x: str, rest: str) -> str:
    return FEW.format(n=n) + rest.replace("PRODUCT", PRODUCT.format(n=n, x=x))


FEW_CASES = {
    "alone": (few(32, "x", "y = PRODUCT\nout y"), 1, {"gated": 0}),
    "a norm": (
        few(32, "t", "t = SimplifiedLayerNormalization(x, g, axis=-1)\ny = PRODUCT\nout y"),
        1,
        {"gated": 0},
    ),
    "a gate": (few(64, "x", "p = PRODUCT\n" + GATE + "y = Mul(g2, b)\nout y"), 1, {"gated": 1}),
    "a gate that is read": (
        few(64, "x", "p = PRODUCT\n" + GATE + "y = Mul(g2, b)\nout y, g1"),
        4,
        {"gated": 0},
    ),
    "a residual": (few(32, "x", "p = PRODUCT\ny = Add(x, p)\nout y"), 1, {"gated": 0}),
    "a sum of a product with itself": (
        few(32, "x", "p = PRODUCT\ny = Add(p, p)\nout y"),
        2,
        {"gated": 0},
    ),
}


@pytest.mark.parametrize(("text", "count", "attrs"), FEW_CASES.values(), ids=FEW_CASES)
def test_nbits_matmul_fusion(text: str, count: int, attrs: dict[str, int]) -> None:
    before, after = parse(text), lowered(text)
    (node,) = [n for n in after.nodes if n.op.name == "FusedMatMulNBits"]
    assert {name: node.attrs[name] for name in attrs} == attrs
    assert len(after.nodes) == count
    feeds = random_feeds(before)
    for want, got in zip(run_graph(before, feeds), run_graph(after, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())

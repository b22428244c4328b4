"""Elementwise fusion: chains and epilogues, and what must not be fused."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import infer
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse
from sardonyx.ops.builder import Builder
from sardonyx.passes.elementwise_fusion import MAX_OPERANDS, fuse_chains
from tests.graphs import random_feeds, run_graph


def fused(text: str) -> Graph:
    """The graph of a text with its chains fused, checked against the graph as it was."""
    before, after = parse(text), parse(text)
    infer(before)
    infer(after)
    fuse_chains(after)
    verify(after, deep=True)
    feeds = random_feeds(before)
    for want, got in zip(run_graph(before, feeds), run_graph(after, feeds), strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return after


def ops(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.sorted_nodes()]


X = "in x: f32[B,8]\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (X + "a = Add(x, 1.0)\nb = Exp(a)\ny = Mul(b, 2.0)\nout y", ["Chain"]),
        (X + "a = Exp(x)\nb = Neg(a)\nc = Abs(a)\ny = Add(b, c)\nout y", ["Chain"]),
        (X + "in w: f32[8]\na = Add(x, w)\ny = Relu(a)\nout y", ["Chain"]),
        (X + "a = Cast(x, to=i32)\nb = Add(a, a)\ny = Cast(b, to=f16)\nout y", ["Chain"]),
        (X + "a = Greater(x, 0.0)\nb = Neg(x)\ny = Where(a, x, b)\nout y", ["Chain"]),
        (X + "in s: f32[1]\na = Sqrt(s)\nb = Abs(a)\ny = Mul(x, b)\nout y", ["Chain"]),
        # The value in the middle is an output too.
        (X + "a = Exp(x)\ny = Neg(a)\nout a, y", ["Exp", "Neg"]),
        (X + "a = Exp(x)\nb = Neg(a)\ny = Abs(b)\nz = Softmax(a)\nout y, z", None),
        # A smaller producer would be computed for each row.
        (X + "in w: f32[8]\na = Exp(w)\ny = Mul(x, a)\nout y", ["Exp", "Mul"]),
        (X + "y = Softmax(x)\nout y", ["Softmax"]),
        (X + "y = Exp(x)\nout y", ["Exp"]),
    ],
)
def test_fused_chains(text: str, left: list[str] | None) -> None:
    found = ops(fused(text))
    assert sorted(found) == sorted(left or ["Exp", "Chain", "Softmax"])


def test_long_chains_are_cut() -> None:
    lines = [f"v{i + 1} = Add(v{i}, {i}.0)" for i in range(100)]
    graph = fused("in v0: f32[B,5]\n" + "\n".join(lines) + "\nout v100")
    assert ops(graph).count("Chain") > 2
    assert len(graph.nodes) < 12


def test_operands_are_limited() -> None:
    inputs = "".join(f"in i{k}: f32[B,3]\n" for k in range(40))
    lines = [f"v{k} = Add({f'v{k - 1}' if k > 1 else 'i0'}, i{k})" for k in range(1, 40)]
    graph = fused(inputs + "\n".join(lines) + "\nout v39")
    assert all(len(n.inputs) <= MAX_OPERANDS for n in graph.nodes)


def test_a_fused_node_has_the_name_of_its_root() -> None:
    text = "in x: f32[4]\na = Exp(x)\ny = Neg(a)\nout y"
    graph = parse(text)
    infer(graph)
    (root,) = [n for n in graph.nodes if n.op.name == "Neg"]
    root.name = "last"
    fuse_chains(graph)
    (node,) = graph.nodes
    assert node.name == "last"
    assert graph.outputs[0].name == "y"


CONV = "in x: f32[1,6,6,3]\nconst w: f32[4,3,3,3]\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (CONV + "a = sardonyx.Conv(x, w)\ny = Relu(a)\nout y", ["Conv"]),
        (
            CONV + "in r: f32[1,4,4,4]\nin c: f32[4]\na = sardonyx.Conv(x, w)\n"
            "b = Add(a, c)\nd = Add(b, r)\ny = Relu(d)\nout y",
            ["Conv"],
        ),
        (
            CONV + "a = sardonyx.Conv(x, w)\nb = sardonyx.Conv(x, w)\nc = Add(a, b)\n"
            "y = Relu(c)\nout y",
            ["Conv", "Conv"],
        ),
        (CONV + "a = sardonyx.Conv(x, w)\ny = Relu(a)\nout a, y", ["Conv", "Relu"]),
        (
            CONV + "in r: f32[3,4,4,4]\na = sardonyx.Conv(x, w)\nb = Add(a, r)\ny = Relu(b)\nout y",
            ["Conv", "Chain"],
        ),
        (
            CONV + "a = sardonyx.Conv(x, w)\nb = Sigmoid(a)\nc = Mul(a, b)\n"
            "y = MaxPool(c, kernel_shape=[1, 1])\nout y",
            ["Conv", "MaxPool"],
        ),
    ],
)
def test_epilogues(text: str, left: list[str]) -> None:
    assert sorted(ops(fused(text))) == sorted(left)


PRODUCT = (
    "in x: f32[B,5,4]\nconst w: f32[4,6]\nr = Reshape(x, [-1, 4])\nm = sardonyx.MatMul(r, w)\n"
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("y = Gelu(s)\nout y", ["MatMul", "Reshape", "Reshape"]),
        ("in c: f32[6]\na = Add(s, c)\ny = Relu(a)\nout y", ["MatMul", "Reshape", "Reshape"]),
        (
            "in z: f32[B,5,6]\na = Add(z, s)\nb = Mul(a, 2.0)\ny = Relu(b)\nout y",
            ["MatMul", "Reshape", "Reshape", "Reshape"],
        ),
        ("in z: f32[5,1]\na = Add(z, s)\ny = Relu(a)\nout y", None),
        ("in z: f32[1,1,6]\na = Add(z, s)\ny = Relu(a)\nout y", None),
        (
            "in c: f32[6]\na = Add(m, c)\nt = Reshape(a, [-1, 5, 6])\ny = Gelu(t)\nout y",
            ["MatMul", "Reshape", "Reshape"],
        ),
        ("y = Gelu(s)\nout y, m", ["Gelu", "MatMul", "Reshape", "Reshape"]),
    ],
)
def test_epilogues_after_a_reshape(text: str, left: list[str] | None) -> None:
    reshape = "s = Reshape(m, [-1, 5, 6])\n" if "Add(m" not in text else ""
    found = ops(fused(PRODUCT + reshape + text))
    assert sorted(found) == (left or ["Chain", "MatMul", "Reshape", "Reshape"])


def test_a_reshape_may_change_the_last_axis() -> None:
    text = PRODUCT + "s = Reshape(m, [-1, 10, 3])\n"
    assert "Chain" not in ops(fused(text + "a = Mul(s, 2.0)\ny = Relu(a)\nout y"))
    assert "Chain" in ops(fused(text + "in c: f32[3]\na = Add(s, c)\ny = Relu(a)\nout y"))


def test_epilogues_are_extended() -> None:
    """A convolution with an epilogue gets the next node appended to it."""
    text = CONV + "in c: f32[4]\nin d: f32[4]\na = sardonyx.Conv(x, w)\nb = Add(a, c)\n"
    whole = parse(text + "m = Mul(d, b)\ny = Sub(b, m)\nout y")
    graph = parse(text + "out b")
    infer(whole)
    infer(graph)
    fuse_chains(graph)
    builder, (biased,) = Builder(graph, graph.scope), graph.outputs
    later = builder.Sub(biased, builder.Mul(graph.inputs[-1], biased))
    graph.set_outputs([later])
    fuse_chains(graph)
    assert ops(graph) == ["Conv"]
    feeds = random_feeds(whole)
    want, got = run_graph(whole, feeds), run_graph(graph, feeds)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-6)


def test_bodies_are_fused_too() -> None:
    graph = parse(
        "in c: bool[] in x: f32[4]"
        " y = If(c) {then_branch: {a = Exp(x) b = Neg(a) out b} else_branch: {d = Abs(x) out d}}"
        " out y"
    )
    infer(graph)
    fuse_chains(graph)
    assert sorted(n.op.name for n in graph.all_nodes()) == ["Abs", "Chain", "If"]

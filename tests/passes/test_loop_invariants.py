"""Loop-invariant code motion: what is hoisted or no longer carried, that results stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.graph.graph import Graph, Node
from sardonyx.graph.infer import infer
from sardonyx.graph.verify import verify
from sardonyx.load import load
from sardonyx.passes import PassOptions, optimize
from tests.test_ranks import check, model

# w is carried as it is, v through an Identity, u is never read, t is read only after the loop.
CARRIES = """
g (float[N, 4] x, {count}, float[N, 4] z) => ({outputs}) <float[4, 4] w = {weights}, {more}> {{
  a, b, c, d, e = Loop (trips, , x, w, z, x, x)
  <body = l (int64 i, bool on, float[N, 4] p, float[4, 4] q, float[N, 4] r, float[N, 4] s,
             float[N, 4] t)
      => (bool go, float[N, 4] p1, float[4, 4] q1, float[N, 4] r1, float[N, 4] s1,
          float[N, 4] t1) {{
    go = Identity(on)
    transposed = Transpose(q)
    fixed = MatMul(r, transposed)
    seen = Tanh(fixed)
    p1 = Add(p, seen)
    q1 = Identity(q)
    r1 = Identity(r)
    s1 = Exp(p)
    t1 = Neg(p)
  }}>
}}
"""
WEIGHTS = "{" + ", ".join(str(i / 8) for i in range(16)) + "}"


def text_of(count: str = "float unused", more: str = "int64 trips = {3}", out: str = "ae") -> str:
    outputs = ", ".join(f"float[N, 4] {name}" for name in out)
    return CARRIES.format(count=count, more=more, outputs=outputs, weights=WEIGHTS)


def optimized(text: str) -> Graph:
    graph = load(model(text)).graph
    infer(graph)
    optimize(graph, PassOptions())
    verify(graph)
    return graph


def loop_of(graph: Graph) -> Node:
    (node,) = [n for n in graph.nodes if n.op.name == "Loop"]
    return node


def ops(graph: Graph) -> set[str]:
    return {n.op.name for n in graph.nodes}


def feeds(count: str = "unused", number: Any = 1.0) -> dict[str, Any]:
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    kind = np.int64 if count == "trips" else np.float32
    return {"x": x, "z": x + 1, count: np.array(number, kind)}


def test_invariant_values_are_not_carried() -> None:
    graph = optimized(text_of())
    node = loop_of(graph)
    assert len(node.inputs) == 2 + 2
    assert ops(node.attrs["body"]) == {"Add", "Neg"}
    check(text_of(), **feeds())


@pytest.mark.parametrize("out", ["ac", "bd", "abcde", "e"])
def test_outputs_stay_the_same(out: str) -> None:
    text = text_of(out=out).replace("float[N, 4] b)", "float[4, 4] b)")
    check(text.replace("float[N, 4] b,", "float[4, 4] b,"), **feeds())


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_nothing_is_hoisted_from_a_loop_that_may_not_run(trips: int) -> None:
    text = text_of("int64 trips", "int64 unused = {0}")
    graph = optimized(text)
    assert "Tanh" in ops(loop_of(graph).attrs["body"])
    assert len(loop_of(graph).inputs) == 2 + 2
    check(text, **feeds("trips", trips))


def test_varying_nodes_stay_in_the_body() -> None:
    text = """
    g (float[N] x) => (float[N] y) <int64 trips = {4}> {
      y = Loop (trips, , x) <body = l (int64 i, bool on, float[N] p) => (bool go, float[N] q) {
        go = Identity(on)
        f = Cast<to = 1>(i)
        half = Constant<value_float = 0.5>()
        g = Mul(f, half)
        twice = Add(x, x)
        q1 = Add(p, g)
        q = Mul(q1, twice)
      }>
    }
    """
    graph = optimized(text)
    assert ops(loop_of(graph).attrs["body"]) >= {"Cast", "Mul"}
    assert "Add" in ops(graph)
    check(text, x=np.linspace(0, 1, 5, dtype=np.float32))

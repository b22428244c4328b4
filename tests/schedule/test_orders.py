"""Orders of small graphs by table, of random ones by what holds in all, of large ones by time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.graph.graph import Graph, Node
from sardonyx.load.graph_text import parse
from tests.schedule.graphs import (
    LARGE,
    LOOKS,
    check_order,
    graph_of,
    memory_efficient,
    priority_based,
    random_graphs,
    reverse_depth_first,
)

ORDERS = [reverse_depth_first, priority_based, memory_efficient]
LARGE_NODES = 20_000
# A bound that no quadratic way meets: measured, each takes a tenth of it.
SECONDS = 2.0

BRANCHES = """
    in x: f32[8]
    a = Relu(x)  b = Exp(a)  s = Shape(b)  c = Neg(b)  d = Abs(a)  e = Sqrt(d)
    f = Add(c, e)  Y = Expand(f, s)
    out Y
"""
# Text, then reverse depth-first, priority-based and memory-efficient.
TABLE = {
    "chain": ("in x: f32[8] a = Relu(x) b = Exp(a) c = Neg(b) out c", "a b c", "a b c", "a b c"),
    "branches": (BRANCHES, "a d e b s c f Y", "a b s c d e f Y", "a d e b s c f Y"),
    "longest branch": (
        """in x: f32[8]
        a = Relu(x)  b = Exp(a)  c = Neg(b)  d = Abs(x)  e = Add(c, d)
        out e""",
        "d a b c e",
        "a b c d e",
        "a b c d e",
    ),
    "ends": (
        "in x: f32[8] a = Relu(x) b = Exp(x) c = Neg(a) out b, c",
        "a c b",
        "a b c",
        "a c b",
    ),
    "priorities": (
        """in x: f32[8]
        a = Relu(x) @priority=10  b = Exp(x)  c = Neg(x) @priority=-10
        d = Add(a, b)  e = Add(d, c)
        out e""",
        "b a d c e",
        "c b a d e",
        "b a d c e",
    ),
    "looks at looks": (
        """in x: f32[8]
        s = Shape(x)  a = Relu(x)  t = Shape(a)  n = Size(t)  b = Neg(a)  u = Size(a)
        out b, s, n, u""",
        "s a t n u b",
        "s a t n u b",
        "s a t n u b",
    ),
    "captures": (
        """in c: bool[]  in x: f32[8]
        a = Relu(x)  b = Exp(x)
        y = If(c) { then_branch: { t = Neg(b) out t } else_branch: { out a } }
        out y""",
        "b a y",
        "a b y",
        "b a y",
    ),
    # Gradients of three layers: each layer's output is kept for its gradient.
    "training": (
        """in x: f32[8]
        a = Relu(x)  b = Exp(a)  l = Neg(b)
        dl = Abs(l) @backward  db = Mul(dl, b) @backward  gb = Sqrt(db) @backward
        da = Mul(db, a) @backward  ga = Sqrt(da) @backward
        out l, gb, ga""",
        "a b l dl db da ga gb",
        "a b l dl db gb da ga",
        "a b l dl db gb da ga",
    ),
    # ra and rb are computed again, each right before the gradient that reads it.
    "recompute": (
        """in x: f32[8]
        a = Relu(x)  b = Exp(a)  l = Neg(b)
        ra = Relu(x) @priority=10 @backward  rb = Exp(ra) @priority=10 @backward
        dl = Abs(l) @backward  db = Mul(dl, rb) @backward  da = Mul(db, ra) @backward
        out l, da""",
        "a b l dl ra rb db da",
        "a b l dl ra rb db da",
        "a b l dl ra rb db da",
    ),
    "clusters": (
        """in x: f32[8]
        a = Relu(x)  b = Exp(a)  l = Neg(b)
        r1 = Relu(a) @priority=10  r2 = Exp(r1) @priority=10
        q1 = Relu(b) @priority=10  q2 = Exp(q1) @priority=10
        dl = Abs(l) @backward  d1 = Mul(dl, q2) @backward
        d2 = Mul(d1, q1) @backward  d3 = Mul(d2, r2) @backward
        out l, d3""",
        "a b l dl q1 q2 d1 d2 r1 r2 d3",
        "a b l dl r1 r2 q1 q2 d1 d2 d3",
        "a b l dl q1 q2 d1 d2 r1 r2 d3",
    ),
    # t is a gradient by its mark, and waits for the only one that reads it.
    "late": (
        """in x: f32[8]
        a = Relu(x)  l = Neg(a)
        t = Exp(a) @backward  u = Sqrt(t) @backward
        d1 = Abs(l) @backward  d2 = Neg(d1) @backward  d3 = Exp(d2) @backward
        g = Mul(d3, u) @backward  h = Sqrt(d1) @backward
        out l, g, h""",
        "a l d1 h d2 d3 t u g",
        "a l t u d1 d2 d3 g h",
        "a l d1 d2 h d3 t u g",
    ),
    # What follows from a gradient is one; what the forward part reads is not computed again.
    "marks that lie": (
        """in x: f32[8]
        g = Abs(x) @backward  n = Neg(g)
        a = Relu(x) @priority=10  b = Exp(a)
        r = Sqrt(n) @priority=10
        out n, b, r""",
        "g n r a b",
        "g n a b r",
        "a b g n r",
    ),
}


@pytest.mark.parametrize(
    ("text", "order", "expected"),
    [
        pytest.param(text, order, expected, id=f"{name}-{order.__name__}")
        for name, (text, *rows) in TABLE.items()
        for order, expected in zip(ORDERS, rows, strict=True)
    ],
)
def test_orders_of_small_graphs(
    text: str, order: Callable[[Graph], tuple[Node, ...]], expected: str
) -> None:
    graph = parse(text)
    found = order(graph)
    check_order(graph, found)
    assert " ".join(n.name for n in found) == expected


@given(random_graphs(marked=True))
@settings(max_examples=120, deadline=None)
def test_invariants_of_every_order(graph: Graph) -> None:
    for order in ORDERS:
        found = order(graph)
        check_order(graph, found)
        assert order(graph) == found


@given(random_graphs(marked=True))
@settings(max_examples=120, deadline=None)
def test_gradients_come_last(graph: Graph) -> None:
    """No gradient runs before a node that neither is one nor follows from one."""
    order = [n for n in memory_efficient(graph) if n.op.name not in LOOKS]
    gradients: set[Node] = set()
    for node in graph.sorted_nodes():
        makers = {v.node for v in node.inputs if v is not None}
        if (node.is_backward and node.op.name not in LOOKS) or makers & gradients:
            gradients.add(node)
    first = next((i for i, n in enumerate(order) if n in gradients), len(order))
    for node in order[first:]:
        assert node in gradients or node.priority > 0


@given(st.integers(1, 8), st.integers(1, 3), st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_recomputation_waits_for_its_reader(
    n_layers: int, length: int, is_backward: bool, has_looks: bool
) -> None:
    """Layers that are computed again for their gradients: each run of them ends in its reader."""
    rows: list[tuple[str, list[int]]] = [("Sum", [i - 1] if i else []) for i in range(n_layers + 1)]
    again: set[int] = set()
    for layer in range(n_layers):
        for step in range(length):
            again.add(len(rows))
            rows.append(("Sum", [len(rows) - 1 if step else layer]))
    ends = [n_layers + (layer + 1) * length for layer in range(n_layers)]
    gradient = n_layers  # the loss
    for end in reversed(ends):
        rows.append(("Sum", [gradient, end]))
        gradient = len(rows) - 1
        if has_looks:
            rows.append(("Shape", [end]))
    graph = graph_of(rows)
    for i, node in enumerate(graph.nodes):
        node.priority = 10 if i in again else 0
        node.is_backward = i > n_layers and (i not in again or is_backward)
    order = memory_efficient(graph)
    check_order(graph, order)
    shown = "".join(
        "r" if n.priority else "b" if n.is_backward else "f" for n in order if n.op.name == "Sum"
    )
    assert shown == "f" * (n_layers + 1) + ("r" * length + "b") * n_layers


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: o.__name__)
@pytest.mark.parametrize("shape", LARGE)
def test_large_graphs(shape: str, order: Callable[[Graph], tuple[Node, ...]]) -> None:
    graph = graph_of(LARGE[shape](LARGE_NODES))
    if shape == "training":
        for i, node in enumerate(graph.nodes):
            node.is_backward = i >= LARGE_NODES // 2
    gc.disable()  # collections visit all that other tests keep
    try:
        started = time.thread_time()
        found = order(graph)
        seconds = time.thread_time() - started
    finally:
        gc.enable()
    assert seconds < SECONDS
    check_order(graph, found)

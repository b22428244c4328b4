"""The order of the least peak where steps run in Python: never above reverse depth-first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings

from sardonyx.graph.graph import Graph, Node
from sardonyx.load.graph_text import parse
from sardonyx.place import place
from sardonyx.providers import resolve
from sardonyx.schedule import KEPT, Order, OrderOptions, schedule
from sardonyx.schedule.size_estimates import SizeEstimates
from tests.graphs import scheduled
from tests.schedule.graphs import (
    LARGE,
    check_order,
    graph_of,
    memory_efficient,
    priority_based,
    random_graphs,
    reverse_depth_first,
)


def peak(graph: Graph, order: Sequence[Node], sizes: Mapping[str, int]) -> int:
    """The most bytes alive at once, by counting at every step."""
    most = 0
    place = {node: i for i, node in enumerate(order)}
    for step in range(len(order)):
        alive = 0
        for node in order:
            (value,) = node.outputs
            last = max([place[n] for n, _ in value.uses], default=place[node])
            if place[node] <= step <= last and value not in graph.outputs:
                alive += sizes[value.name]
        most = max(most, alive)
    return most


@given(random_graphs(most=14))
@settings(max_examples=120, deadline=None)
def test_the_best_of_all_orders(graph: Graph) -> None:
    sizes = {n.name: 4 * n.outputs[0].tensor.static[0] for n in graph.nodes}  # type: ignore[index]
    for node in graph.nodes:
        if node.op.name in ("Shape", "Size"):  # they take no part in the simulation
            sizes[node.name] = 0
    found = scheduled(graph).nodes
    check_order(graph, found)
    assert found == scheduled(graph).nodes
    others = [o(graph) for o in (reverse_depth_first, priority_based, memory_efficient)]
    assert peak(graph, found, sizes) <= min(peak(graph, o, sizes) for o in others)
    if peak(graph, found, sizes) == peak(graph, others[0], sizes):
        assert found == others[0]


# Wide results that are reduced at once: one at a time is best, all of them first is worst.
WIDE = """
    in x: f32[8]
    a = Expand(x, [64, 8])  b = Expand(x, [64, 8])  c = Expand(x, [64, 8])
    p = ReduceSum(a)  q = ReduceSum(b)  r = ReduceSum(c)
    s = Add(p, q)  y = Add(s, r)
    out y
"""
# Two branches that are wide in between: the wider one comes first, before the other's result.
UNEVEN = """
    in u: f32[1,A]  in v: f32[1,B]
    const k: f32[64,1]
    a = Mul(u, k)  p = ReduceSum(a, [0])
    b = Mul(v, k)  q = ReduceSum(b, [0])
    y = Concat(p, q, axis=1)
    out y
"""


def names(graph: Graph, options: OrderOptions | None = None) -> str:
    return " ".join(n.name for n in scheduled(graph, options).nodes)


def test_one_wide_result_at_a_time() -> None:
    graph = parse(WIDE)
    sizes = {n.name: 2048 if n.name in "abc" else 4 for n in graph.nodes}
    assert peak(graph, scheduled(graph).nodes, sizes) < 2 * 2048
    by_priority = scheduled(graph, OrderOptions(Order.PRIORITY_BASED)).nodes
    assert peak(graph, by_priority, sizes) >= 3 * 2048


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ({}, "b q a p y"),  # as reverse depth-first has it
        ({"A": 100}, "a p b q y"),
        ({"B": 100}, "b q a p y"),
        ({"A": 100, "B": 1000}, "b q a p y"),
        ({"A": 1000, "B": 100, "other": 3}, "a p b q y"),
    ],
)
def test_dim_hints_choose_the_order(hints: dict[str, int], expected: str) -> None:
    assert names(parse(UNEVEN), OrderOptions(hints=hints)) == expected


def test_bodies_are_ordered_too() -> None:
    inner = UNEVEN.replace("in u: f32[1,A]  in v: f32[1,B]", "")
    graph = parse(f"""
        in c: bool[]  in u: f32[1,A]  in v: f32[1,B]
        z = If(c) {{ then_branch: {{ {inner} }} else_branch: {{ out u }} }}
        out z
    """)
    for hints, expected in (({"A": 100}, "a p b q y"), ({"B": 100}, "b q a p y")):
        found = scheduled(graph, OrderOptions(hints=hints))
        (body,) = [b for g, b in found.bodies.items() if g.nodes]
        assert " ".join(n.name for n in body.nodes) == expected


SIZES = [
    ("in x: f32[B,S] y = Neg(x)", {}, 4 * 64),
    ("in x: f32[B,S] y = Neg(x)", {"B": 8}, 4 * 8 * 64),
    ("in x: f32[B,S] y = Neg(x)", {"B": 8, "S": 2}, 4 * 8 * 2),
    ("in x: f16[B,B] y = Neg(x)", {}, 2),
    ("in x: f32[2,3] y = Neg(x)", {"B": 8}, 24),
    ("in x: f32[S,3] y = Concat(x, x, axis=0)", {"S": 5}, 4 * 10 * 3),
    ("in x: f32[4,S] n = NonZero(x) y = Neg(n)", {}, 4 * 4 * 64),  # as what it is made of
    ("in x: f32[?] y = Neg(x)", {}, 0),
    ("in x: str[2] y = StringConcat(x, x)", {}, 32),
    ("in x: f32[B,S] y = Neg(x)", {"B": 10**17, "S": 10**17}, 1 << 44),
    ("in x: f32[B,S#1] y = Neg(x)", {"S": 5}, 20),
    ("in x: f32[B,'past + 1'] y = Neg(x)", {"past + 1": 5}, 20),
]


@pytest.mark.parametrize(("text", "hints", "expected"), SIZES)
def test_sizes(text: str, hints: dict[str, int], expected: int) -> None:
    graph = parse(f"{text} out y")
    sizes = SizeEstimates(graph, hints)
    known = {v: sizes.bytes_of(v.fact) or 0 for v in graph.inputs}
    for node in graph.sorted_nodes():
        known.update(sizes.outputs_of(node, known))
    assert known[graph.outputs[0]] == expected


def test_native_graphs_are_searched_when_sizes_are_bound() -> None:
    graph = parse(UNEVEN)
    native = place(graph, resolve(None, None)[1])
    hints = {"A": 100}
    found = schedule(native, OrderOptions(effort=2, hints=hints))
    assert found.search.effort == 2
    assert found.nodes == reverse_depth_first(graph)
    for order in set(Order) - {Order.LEAST_PEAK}:
        assert schedule(native, OrderOptions(order, hints=hints)).search.effort == KEPT


def test_native_gradients_begin_by_the_memory_efficient_order() -> None:
    graph = parse("""
        in x: f32[8]
        a = Relu(x)  l = Neg(a)
        d = Abs(l) @backward  g = Sqrt(d) @backward  h = Mul(d, a) @backward
        out g, h, l
    """)
    found = schedule(place(graph, resolve(None, None)[1]))
    assert found.nodes == memory_efficient(graph) != reverse_depth_first(graph)


@pytest.mark.parametrize("shape", LARGE)
def test_large_graphs(shape: str) -> None:
    graph = graph_of(LARGE[shape](20_000))
    check_order(graph, scheduled(graph).nodes)

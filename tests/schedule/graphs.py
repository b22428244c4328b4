"""Graphs for tests of orders: random ones, and large ones of plain shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.ops import lookup
from sardonyx.schedule import orders
from sardonyx.schedule.dependencies import Dependencies

LOOKS = ("Shape", "Size")
FACT = Fact(F32, (4,))


def add(graph: Graph, op: str, *inputs: Value, n_elements: int = 4) -> Node:
    """A node whose output has so many elements; nothing is inferred."""
    found = lookup("", op)
    assert found is not None
    made = Value(f"v{len(graph.nodes)}", Fact(F32, (n_elements,)))
    return graph.add(found, inputs, dict(found.defaults), [made], made.name)


def graph_of(rows: Sequence[tuple[str, Sequence[int]]], sizes: Sequence[int] = ()) -> Graph:
    """Nodes by the numbers of those that they read; without any, they read the input."""
    graph = Graph()
    graph.inputs.append(Value("x", FACT))
    nodes: list[Node] = []
    for i, (op, reads) in enumerate(rows):
        values = [nodes[r].outputs[0] for r in reads] or [graph.inputs[0]]
        nodes.append(add(graph, op, *values, n_elements=sizes[i] if sizes else 4))
    graph.set_outputs([n.outputs[0] for n in nodes if not n.outputs[0].uses])
    return graph


def check_order(graph: Graph, order: Sequence[Node]) -> None:
    """All nodes once, each after those it reads, and readers of a shape immediately after."""
    assert len(order) == len(graph.nodes)
    assert set(order) == set(graph.nodes)
    place = {node: i for i, node in enumerate(order)}
    for node in order:
        makers = [v.node for v in node.reads() if v.node is not None and v.node.graph is graph]
        assert all(place[maker] < place[node] for maker in makers)
        if node.op.name in LOOKS:
            start = place[makers[0]] + 1 if makers else 0
            assert all(n.op.name in LOOKS for n in order[start : place[node]])


@st.composite
def random_graphs(draw: st.DrawFn, marked: bool = False, most: int = 24) -> Graph:
    """Any graph of a few nodes; with marks, some compute gradients and some compute again."""
    rows: list[tuple[str, list[int]]] = []
    for i in range(draw(st.integers(1, most))):
        reads = draw(st.lists(st.integers(0, max(0, i - 1)), max_size=4 if i else 0, unique=True))
        op = draw(st.sampled_from(("Sum", "Sum", "Sum", *LOOKS)))
        rows.append((op, reads[:1] if op in LOOKS else reads))
    graph = graph_of(rows, draw(st.lists(st.integers(0, 99), min_size=most, max_size=most)))
    for node in graph.nodes if marked else ():
        node.priority = draw(st.sampled_from((0, 0, 0, 10, 100, -10)))
        node.is_backward = draw(st.booleans())
    return graph


def _dense(n_nodes: int, width: int = 20) -> list[tuple[str, list[int]]]:
    return [
        ("Sum", list(range((i // width - 1) * width, i // width * width)) if i >= width else [])
        for i in range(n_nodes)
    ]


LARGE: dict[str, Callable[[int], list[tuple[str, list[int]]]]] = {
    "chain": lambda n: [("Sum", [i - 1] if i else []) for i in range(n)],
    "readers": lambda n: [("Sum", [0] if i else []) for i in range(n)],
    "joined": lambda n: [*(("Sum", []) for _ in range(n - 1)), ("Sum", list(range(n - 1)))],
    "ladder": lambda n: [("Sum", list(range(max(0, i - 2), i))) for i in range(n)],
    "dense": _dense,
    "looks": lambda n: [("Shape" if i % 2 else "Sum", [i - 1] if i else []) for i in range(n)],
    "training": lambda n: [("Sum", [i - 1] if i < n // 2 else [i - 1, n - 1 - i])
                           if i else ("Sum", []) for i in range(n)],
}  # fmt: skip


def reverse_depth_first(graph: Graph) -> tuple[Node, ...]:
    """The order of `orders.reverse_depth_first` as nodes."""
    deps = Dependencies.of(graph)
    return deps.ordered(orders.reverse_depth_first(deps))


def priority_based(graph: Graph) -> tuple[Node, ...]:
    """The order of `orders.priority_based` as nodes."""
    deps = Dependencies.of(graph)
    return deps.ordered(orders.priority_based(deps))


def memory_efficient(graph: Graph) -> tuple[Node, ...]:
    """The order of `orders.memory_efficient` as nodes."""
    deps = Dependencies.of(graph)
    return deps.ordered(orders.memory_efficient(deps))

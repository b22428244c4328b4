"""Lifetimes, placement and its independent check."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.base.records import replace
from sardonyx.errors import InternalError
from sardonyx.load.graph_text import parse
from sardonyx.memory import peak_live_bytes, plan
from sardonyx.memory.offsets import ArenaLayout, LiveRange, assign_offsets, check_offsets
from tests.graphs import scheduled

lives = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 8)), max_size=40
).map(
    lambda rows: [
        LiveRange(i, size, start, start + length) for i, (size, start, length) in enumerate(rows)
    ]
)


@given(lives)
@settings(max_examples=200, deadline=None)
def test_no_two_live_values_overlap(values: list[LiveRange]) -> None:
    layout = assign_offsets(values)
    check_offsets(values, layout)
    assert layout.size >= peak_live_bytes(values)


def test_the_checker_detects_an_overlap() -> None:
    values = [LiveRange(0, 64, 0, 2), LiveRange(1, 64, 2, 3)]
    with pytest.raises(InternalError, match="share bytes"):
        check_offsets(values, ArenaLayout({0: 0, 1: 32}, 128))
    with pytest.raises(InternalError, match="outside"):
        check_offsets(values, ArenaLayout({0: 0, 1: 64}, 100))
    check_offsets([values[0], replace(values[1], start=3)], ArenaLayout({0: 0, 1: 0}, 64))


def test_lifetimes_and_views() -> None:
    graph = parse(
        "in x: f32[B,8]\na = Relu(x)\nv = Reshape(a, [-1])\nb = Neg(v)\nc = Abs(b)\nout c"
    )
    schedule = scheduled(graph)
    memory = plan(schedule)
    spans = {s.value.name: s for s in memory.spans}
    assert set(spans) == {"a", "b", "c"}  # the view has no bytes of its own
    assert (spans["a"].start, spans["a"].end) == (0, 2)
    assert spans["c"].end == len(schedule.nodes)
    assert memory.layout({"B": 2}).size == 128
    assert [[v.name for v in step] for step in memory.frees] == [["x"], ["a"], ["v"], ["b"]]

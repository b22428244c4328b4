"""Memory: how long each value lives, which values share bytes, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Size, evaluate, symbols
from sardonyx.graph.dtype import STRING
from sardonyx.graph.fact import Fact, elements
from sardonyx.graph.graph import Value
from sardonyx.memory.offsets import Layout, Life, place
from sardonyx.schedule import Schedule
from sardonyx.schedule.peak import viewed


@frozen
class Span:
    """A value that a step makes, and the first and last step that needs its bytes."""

    value: Value
    start: int
    end: int

    @property
    def size(self) -> Size | None:
        """Bytes as an expression in the graph's dims; None where the value has no such size."""
        fact = self.value.fact
        if not isinstance(fact, Fact) or fact.dtype is STRING:
            return None
        count = elements(fact)
        return None if count is None else count * fact.dtype.itemsize


@frozen
class Plan:
    """Lifetimes of a schedule's values; a view counts with the value whose bytes it shows."""

    spans: tuple[Span, ...]
    frees: tuple[tuple[Value, ...], ...]  # by step: what nobody reads any more after it

    def layout(self, dims: dict[str, int]) -> Layout:
        """Offsets of all values whose size these dims give."""
        return place(self.lives(dims))

    def lives(self, dims: dict[str, int]) -> list[Life]:
        """The spans with their sizes in bytes."""
        return [
            Life(i, evaluate(size, dims), s.start, s.end)
            for i, s in enumerate(self.spans)
            if (size := s.size) is not None and symbols(size) <= dims.keys()
        ]


def plan(schedule: Schedule) -> Plan:
    """Lifetimes and aliases of everything that a schedule makes."""
    last: dict[Value, int] = {}
    roots: dict[Value, Value] = {}
    for step, node in enumerate(schedule.nodes):
        for value in node.reads():
            last[value] = step
        source = viewed(node)
        if source is not None:
            roots[node.outputs[0]] = roots.get(source, source)
        for value in node.outputs:
            last.setdefault(value, step)
    end = len(schedule.nodes)
    for value in schedule.graph.outputs:
        last[value] = end
    return Plan(_spans(schedule, last, roots), _frees(last, end))


def _spans(
    schedule: Schedule, last: dict[Value, int], roots: dict[Value, Value]
) -> tuple[Span, ...]:
    """One span for each value with bytes of its own, as long as any of its views lives."""
    ends = dict(last)
    for view, root in roots.items():
        ends[root] = max(ends.get(root, 0), last[view])
    return tuple(
        Span(value, step, ends[value])
        for step, node in enumerate(schedule.nodes)
        for value in node.outputs
        if value not in roots
    )


def _frees(last: dict[Value, int], end: int) -> tuple[tuple[Value, ...], ...]:
    frees: list[list[Value]] = [[] for _ in range(end)]
    for value, step in last.items():
        if step < end and value.const is None:
            frees[step].append(value)
    return tuple(map(tuple, frees))


def peak(lives: Sequence[Life]) -> int:
    """The most bytes that are alive in any one step: what no layout can be below."""
    changes: dict[int, int] = {}
    for life in lives:
        changes[life.start] = changes.get(life.start, 0) + life.size
        changes[life.end + 1] = changes.get(life.end + 1, 0) - life.size
    most = now = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most

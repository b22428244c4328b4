"""Memory: the lifetime of each value, which values alias, and what is freed after each step.

Native segments plan their arena themselves when sizes are bound (native/exec); these lifetimes
serve steps that Python runs, device limits and reports.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Size, evaluate, symbols
from sardonyx.graph.dtype import STRING
from sardonyx.graph.fact import Fact, elements
from sardonyx.graph.graph import Value
from sardonyx.memory.offsets import ArenaLayout, LiveRange, assign_offsets
from sardonyx.schedule import Schedule
from sardonyx.schedule.least_peak import aliased_input


@frozen
class Lifetime:
    """The first and the last step that needs the bytes of a value, both included."""

    value: Value
    start: int
    end: int

    @property
    def size(self) -> Size | None:
        """Bytes, symbolic in the graph's dims; None for strings, sequences and open ranks."""
        fact = self.value.fact
        if not isinstance(fact, Fact) or fact.dtype is STRING:
            return None
        count = elements(fact)
        return None if count is None else count * fact.dtype.itemsize


@frozen
class LifetimePlan:
    """Lifetimes of a schedule's values; the lifetime of a view extends that of its source."""

    spans: tuple[Lifetime, ...]
    frees: tuple[tuple[Value, ...], ...]  # by step: values whose last reader it is

    def layout(self, dims: dict[str, int]) -> ArenaLayout:
        """Assign arena offsets to all values whose sizes follow from these dims."""
        return assign_offsets(live_ranges(self.spans, dims))


def live_ranges(spans: Sequence[Lifetime], dims: dict[str, int]) -> list[LiveRange]:
    """Return lifetimes with sizes in bytes; those whose sizes are not known yet are left out."""
    return [
        LiveRange(i, evaluate(size, dims), span.start, span.end)
        for i, span in enumerate(spans)
        if (size := span.size) is not None and symbols(size) <= dims.keys()
    ]


def plan(schedule: Schedule) -> LifetimePlan:
    """Compute lifetimes and aliases of all values of a schedule."""
    last: dict[Value, int] = {}
    roots: dict[Value, Value] = {}
    for step, node in enumerate(schedule.nodes):
        for value in node.reads():
            last[value] = step
        source = aliased_input(node)
        if source is not None:
            roots[node.outputs[0]] = roots.get(source, source)  # views of views have one root
        for value in node.outputs:
            last.setdefault(value, step)
    end = len(schedule.nodes)  # after the last step: outputs are never freed
    for value in schedule.graph.outputs:
        last[value] = end
    return LifetimePlan(_lifetimes(schedule, last, roots), _frees(last, end))


def _lifetimes(
    schedule: Schedule, last: dict[Value, int], roots: dict[Value, Value]
) -> tuple[Lifetime, ...]:
    """One lifetime per value with bytes of its own, up to the last use of any of its views."""
    ends = dict(last)
    for view, root in roots.items():
        ends[root] = max(ends.get(root, 0), last[view])
    return tuple(
        Lifetime(value, step, ends[value])
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


def peak_live_bytes(lives: Sequence[LiveRange]) -> int:
    """Return the most bytes that are live in one step: a lower bound for every arena."""
    # A sweep over the steps where bytes become live or dead.
    changes: dict[int, int] = {}
    for life in lives:
        changes[life.start] = changes.get(life.start, 0) + life.size
        changes[life.end + 1] = changes.get(life.end + 1, 0) - life.size
    most = now = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most

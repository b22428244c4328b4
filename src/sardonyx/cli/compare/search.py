"""Compares the values of two sides in groups, and finds the first node where they part.

A group is as many values as fit into the memory limit: both sides run once for each group, with
its values as outputs, and only one group of each side is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.records import field, frozen, mutable, replace
from sardonyx.cli.compare.difference import Difference, difference
from sardonyx.cli.compare.matching import Pair
from sardonyx.cli.compare.sides import ComparedModel, Key, Side
from sardonyx.errors import SardonyxError
from sardonyx.graph.copy import copied
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node
from sardonyx.graph.infer import infer

MIN_GROUP_BYTES: Final = 16 << 20
_UNKNOWN_SHARE: Final = 16  # a value of unknown size counts as this fraction of a group

Report = Callable[[int, int], None]  # compared values, and how many there are


@frozen
class Compared:
    """One value of both sides."""

    pair: Pair
    a: Key
    b: Key
    n_bytes: int | None  # of A's value, if known before the run


@frozen
class Finding:
    """A value that differs, or that B cannot compute."""

    compared: Compared
    difference: Difference
    error: str = ""


@mutable
class Result:
    """The result of a comparison."""

    findings: list[Finding] = field(default_factory=list)  # in A's topological order
    n_compared: int = 0
    outputs: list[tuple[str, Difference]] = field(default_factory=list)
    output_error: str = ""  # why B's unchanged model cannot run
    # Whether the outputs differ, and no value does while all of a group are visible: the fault is
    # in a fused kernel, and `findings` were made with one value visible at a time.
    is_fused: bool = False

    def first(self, tolerance: float) -> Finding | None:
        """Return the first node whose values part, or that a change makes differ at all."""
        for finding in self.findings:
            is_changed = bool(finding.compared.pair.changes)
            if finding.error or is_changed or finding.difference.exceeds(tolerance):
                return finding
        return None

    def differs(self, tolerance: float) -> bool:
        """Return whether any value differs by more than the tolerance."""
        pairs = [*self.outputs, *((f.error, f.difference) for f in self.findings)]
        errors = self.output_error or any(f.error for f in self.findings)
        return bool(errors) or any(d.exceeds(tolerance) for _, d in pairs)


class Comparison:
    """Two sides, and the inputs on which they are compared."""

    def __init__(
        self, a: Side, b: Side, feed: Mapping[str, Any], tolerance: float, b_names: dict[str, str]
    ) -> None:
        """`b_names` has the names of B's inputs, by those of A, where they differ."""
        self._a, self._b = a, b
        self._feed = feed
        self._b_feed = {b_names.get(name, name): value for name, value in feed.items()}
        self._tolerance = tolerance
        self._failed: set[Node] = set()  # nodes of A whose counterpart cannot run

    def run(
        self, values: Sequence[Compared], names: Sequence[str], limit: int, report: Report
    ) -> Result:
        """Compare the outputs of the unchanged models, then values, in groups of `limit` bytes."""
        result = Result()
        self._compare_outputs(names, result)
        usable = [v for v in values if self._a.can_compute(v.a) and self._b.can_compute(v.b)]
        for group in groups(usable, limit):
            self._compare(group, result)
            report(result.n_compared, len(usable))
        outputs_differ = any(d.exceeds(self._tolerance) for _, d in result.outputs)
        if outputs_differ and result.first(self._tolerance) is None:
            self._search_fused(usable, result)
        return result

    def _compare_outputs(self, names: Sequence[str], result: Result) -> None:
        expected = self._a.outputs(self._feed)
        try:
            got = self._b.outputs(self._b_feed)
        except SardonyxError as error:
            result.output_error = str(error)
            return
        for name, a, b in zip(names, expected, got, strict=False):
            result.outputs.append((name, difference(a, b, self._tolerance)))

    def _compare(self, group: Sequence[Compared], result: Result) -> None:
        """Compare a group; if B cannot compute all of it, halves of it."""
        group = [v for v in group if not self._depends_on_failure(v.pair.a)]
        if not group:
            return
        try:
            found = list(self._differences(group))
        except _OtherSideError as failure:
            if len(group) > 1:
                middle = len(group) // 2
                self._compare(group[:middle], result)
                self._compare(group[middle:], result)
                return
            if not result.n_compared and not group[0].pair.changes:
                raise failure.error from None  # B cannot run at all
            self._failed.add(group[0].pair.a)
            failed = Difference(fraction=math.inf, note="B cannot compute it")
            result.findings.append(Finding(group[0], failed, str(failure.error)))
            found = []
        result.n_compared += len(group)
        result.findings += [f for f in found if not f.difference.is_none or f.difference.note]

    def _differences(self, group: Sequence[Compared]) -> Iterator[Finding]:
        expected = self._a.compute([v.a for v in group], self._feed)
        try:
            got = self._b.compute([v.b for v in group], self._b_feed)
        except SardonyxError as error:
            raise _OtherSideError(error) from error
        for value in group:  # lists shrink, so that compared values are freed
            pair = expected.pop(0), got.pop(0)
            yield Finding(value, difference(*pair, self._tolerance))

    def _depends_on_failure(self, node: Node) -> bool:
        """Return whether the node, or one before it, has failed; failures spread node by node."""
        if node in self._failed:
            return True
        made_by = (value.node for value in node.reads())
        if any(maker in self._failed for maker in made_by if maker is not None):
            self._failed.add(node)
            return True
        return False

    def _search_fused(self, values: Sequence[Compared], result: Result) -> None:
        """Find the first value that differs if no other one is visible, by binary search.

        It assumes that values after the first one that differs do so, too.
        """
        result.is_fused = True
        low, high, last = 0, len(values), None
        while low < high:
            middle = (low + high) // 2
            finding = next(self._differences([values[middle]]))
            if finding.difference.exceeds(self._tolerance):
                high, last = middle, finding
            else:
                low = middle + 1
        if last is not None:
            result.findings.append(last)


class _OtherSideError(Exception):
    """B cannot compute a group of values."""

    def __init__(self, error: SardonyxError) -> None:
        super().__init__(str(error))
        self.error = error


def compared_values(
    pairs: Sequence[Pair], a: ComparedModel, b: ComparedModel, feed: Mapping[str, Any]
) -> list[Compared]:
    """Return the values of matched nodes, in A's topological order."""
    sizes = value_bytes(a, feed)
    values = []
    for pair in pairs:
        for x, y in zip(pair.a.outputs, pair.b.outputs if pair.b else (), strict=False):
            key = a.key(x)
            values.append(Compared(pair, key, b.key(y), sizes.get(key)))
    return values


def groups(values: Sequence[Any], limit: int) -> Iterator[list[Any]]:
    """Cut values, which have `n_bytes`, into groups of at most `limit` bytes, at least one each."""
    group: list[Any] = []
    total = 0
    for value in values:
        size = limit // _UNKNOWN_SHARE if value.n_bytes is None else value.n_bytes
        if group and total + size > limit:
            yield group
            group, total = [], 0
        group.append(value)
        total += size
    if group:
        yield group


def group_limit(loaded: ComparedModel) -> int:
    """Return the bytes of a group: two of them, and a session, take twice the model's memory."""
    return max(MIN_GROUP_BYTES, loaded.weight_bytes // 2)


def value_bytes(loaded: ComparedModel, feed: Mapping[str, Any]) -> dict[Key, int]:
    """Return the sizes of values for these inputs, as far as inference finds them."""
    graph = copied(loaded.model.graph)
    for value in graph.inputs:
        array = feed.get(value.name)
        if isinstance(value.fact, Fact) and isinstance(array, np.ndarray):
            value.fact = replace(value.fact, shape=array.shape)
    try:
        infer(graph)
    except SardonyxError:
        return {}
    found = {}
    for position, node in enumerate(graph.sorted_nodes()):
        for value in node.outputs:
            shape = value.fact.shape if isinstance(value.fact, Fact) else None
            if shape is not None and all(isinstance(d, int) for d in shape):
                sizes = [d for d in shape if isinstance(d, int)]
                found[position, value.index] = math.prod(sizes) * value.tensor.dtype.itemsize
    return found

"""Batch selection: a pure function of the queued requests' sizes and the cost of a run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, Protocol

from sardonyx.base.records import frozen
from sardonyx.serve.batching.cost import CostModel

_SCANNED: Final = 512  # requests at the head of the queue that are considered
# A batch is full when the fixed part of its run is at most this share of it.
_AMORTIZED: Final = 0.03


class Sized(Protocol):
    """The sizes of a queued request that batching depends on."""

    @property
    def key(self) -> Hashable:
        """Only requests of equal keys are batched."""

    @property
    def rows(self) -> int:
        """The size of the batch dim."""

    @property
    def length(self) -> int:
        """The size that padding may change; 1 if there is none."""


@frozen
class Batch:
    """The queue positions of a batch's requests, and their padded length."""

    positions: tuple[int, ...]
    rows: int
    length: int
    is_full: bool  # waiting for more requests gains nothing

    @property
    def elements(self) -> int:
        """Return the size that the cost depends on."""
        return self.rows * self.length


def choose(queue: Sequence[Sized], cost: CostModel, max_rows: int) -> Batch:
    """Return the batch around the first request of a queue, which is ordered by precedence.

    A request of another length joins if the elements that padding adds take less time than the
    fixed part of a run of its own. Nearer lengths join first.
    """
    head = queue[0]
    candidates = [
        position
        for position in range(1, min(len(queue), _SCANNED))
        if queue[position].key == head.key
    ]
    lengths = {queue[position].length for position in candidates}
    if lengths - {head.length}:
        candidates.sort(key=lambda p: (abs(queue[p].length - head.length), p))
    chosen, rows, length = [0], head.rows, head.length
    for position in candidates:
        if _is_amortized(cost, rows * length):
            return Batch(tuple(chosen), rows, length, True)
        other = queue[position]
        if rows + other.rows > max_rows:
            continue
        longest = max(length, other.length)
        joined = (rows + other.rows) * longest
        padding = joined - rows * length - other.rows * other.length
        if padding * cost.per_element_s > cost.fixed_s or (padding and not cost.is_known):
            continue
        chosen.append(position)
        rows, length = rows + other.rows, longest
    is_full = rows >= max_rows or _is_amortized(cost, rows * length)
    return Batch(tuple(chosen), rows, length, is_full)


def _is_amortized(cost: CostModel, elements: int) -> bool:
    return cost.is_known and cost.fixed_s < _AMORTIZED * cost.seconds(elements)

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

    A request of another length joins if its padding takes less time than the fixed part of a run
    of its own, and if it lowers the time of the batch per element that is not padding: the more
    requests share the fixed part, the less padding is accepted. Nearer lengths join first.
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
    own = rows * length  # elements without padding
    for position in candidates:
        if _is_amortized(cost, rows * length):
            return Batch(tuple(chosen), rows, length, True)
        other = queue[position]
        if rows + other.rows > max_rows:
            continue
        longest, elements = max(length, other.length), other.rows * other.length
        added = (rows + other.rows) * longest - rows * length
        if added > elements and not _is_worth(cost, elements, added, own, rows * length):
            continue
        chosen.append(position)
        rows, length, own = rows + other.rows, longest, own + elements
    is_full = rows >= max_rows or _is_amortized(cost, rows * length)
    return Batch(tuple(chosen), rows, length, is_full)


def _is_worth(cost: CostModel, elements: int, added: int, own: int, padded: int) -> bool:
    """Return whether a request saves time, compared with its own run and per element of a batch.

    It has so many elements and adds more of them, to a batch with `own` and `padded` elements.
    """
    saves_run = (added - elements) * cost.per_element_s <= cost.fixed_s
    is_cheaper = cost.per_element_s * added * own <= cost.seconds(padded) * elements
    return cost.is_known and saves_run and is_cheaper


def _is_amortized(cost: CostModel, elements: int) -> bool:
    return cost.is_known and cost.fixed_s < _AMORTIZED * cost.seconds(elements)

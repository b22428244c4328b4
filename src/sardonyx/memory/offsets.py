"""Places values in one arena, and checks a placement by other means than it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.errors import InternalError

ALIGN: Final = 64  # bytes, of every place in native code's arenas


@frozen
class Life:
    """Bytes that a value needs from its first to its last step, both included."""

    value: int
    size: int
    start: int
    end: int


@frozen
class Layout:
    """Where each value lies, and how large the arena must be."""

    offsets: dict[int, int]
    size: int


def place(lives: Sequence[Life], align: int = ALIGN) -> Layout:
    """Largest first, each at the lowest gap that no overlapping life uses."""
    placed: list[tuple[int, int, Life]] = []  # offset, end offset
    offsets: dict[int, int] = {}
    size = 0
    for life in sorted(lives, key=lambda x: (-x.size, x.start, x.value)):
        offset = 0
        for begin, end, other in placed:
            if other.end < life.start or life.end < other.start or end <= offset:
                continue
            if begin - offset >= life.size:
                break
            offset = -(-end // align) * align
        offsets[life.value] = offset
        placed.append((offset, offset + life.size, life))
        placed.sort(key=lambda p: p[0])
        size = max(size, offset + life.size)
    return Layout(offsets, size)


def check(lives: Sequence[Life], layout: Layout) -> None:
    """No two values alive at once share a byte. Quadratic and obvious on purpose."""
    for i, a in enumerate(lives):
        if layout.offsets[a.value] < 0 or layout.offsets[a.value] + a.size > layout.size:
            raise InternalError(f"value {a.value} lies outside the arena of {layout.size} bytes")
        for b in lives[:i]:
            together = a.start <= b.end and b.start <= a.end
            apart = (
                layout.offsets[a.value] + a.size <= layout.offsets[b.value]
                or layout.offsets[b.value] + b.size <= layout.offsets[a.value]
            )
            if together and not apart and a.size and b.size:
                raise InternalError(f"values {a.value} and {b.value} live at once and share bytes")

"""Assigns arena offsets to values, and verifies an assignment by an independent check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.errors import InternalError

ALIGN: Final = 64  # bytes; native/exec aligns arena offsets alike: a cache line, the widest vector


@frozen
class LiveRange:
    """The bytes of a value, live from its first to its last step, both included."""

    value: int
    size: int
    start: int
    end: int


@frozen
class ArenaLayout:
    """The offset of each value, and the bytes of the arena."""

    offsets: dict[int, int]
    size: int


def assign_offsets(lives: Sequence[LiveRange], align: int = ALIGN) -> ArenaLayout:
    """First fit by decreasing size: each value gets the lowest gap between live neighbours."""
    placed: list[tuple[int, int, LiveRange]] = []  # offset, end offset
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
    return ArenaLayout(offsets, size)


def check_offsets(lives: Sequence[LiveRange], layout: ArenaLayout) -> None:
    """Raise if two simultaneously live values share a byte: quadratic, obvious on purpose."""
    for i, a in enumerate(lives):
        if layout.offsets[a.value] < 0 or layout.offsets[a.value] + a.size > layout.size:
            raise InternalError(f"value {a.value} is outside the arena of {layout.size} bytes")
        for b in lives[:i]:
            together = a.start <= b.end and b.start <= a.end
            apart = (
                layout.offsets[a.value] + a.size <= layout.offsets[b.value]
                or layout.offsets[b.value] + b.size <= layout.offsets[a.value]
            )
            if together and not apart and a.size and b.size:
                raise InternalError(
                    f"values {a.value} and {b.value} are live simultaneously and share bytes"
                )

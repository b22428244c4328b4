"""What to say of a run that would need more memory than it is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sardonyx._native import Storage
from sardonyx.base.records import frozen
from sardonyx.errors import RuntimeException
from sardonyx.graph.graph import Node, Value
from sardonyx.program.flat import ABSENT, SegmentBuilder

LIMIT: Final = "sardonyx.max_arena_bytes"
_SHOWN: Final = 4  # tensors


@frozen
class Piece:
    """Bytes in an arena: a value's, or a step's scratch (None)."""

    value: int | None
    bytes: int
    offset: int


def too_much(wanted: int, allowed: int, **where: object) -> RuntimeException:
    """The error of a run that wants so many bytes."""
    return RuntimeException(
        f"a run with these inputs takes {wanted:,} bytes for arena and outputs, "
        f"and {LIMIT} allows {allowed:,}",
        **where,
        hint=f"feed a smaller batch or shorter inputs, or raise {LIMIT} "
        "(or max_mem, if a shared allocator set it)",
    )


def where_most(
    part: SegmentBuilder, memory: Mapping[str, Any], show: Callable[[Value], str]
) -> dict[str, object]:
    """The step where most is alive, with the largest tensors there.

    `memory` is what `Runnable.memory_of` says of the part, `show` the name of a value with its
    shape. Outputs are there from the first step on.
    """
    position, alive = fullest(memory)
    node = part.steps[memory["steps"][position]].node
    values = part.names_of_values
    found = [(_named(values, piece, node, show), piece.bytes) for piece in alive]
    slots = {v.at: n for n, v in enumerate(part.values) if v.storage is Storage.EXPORTED}
    outputs = 0
    for slot, size in memory["exports"]:
        value = values.get(slots.get(slot, ABSENT))
        found.append(("an output" if value is None else f"{show(value)} (output)", size))
        outputs += size
    found.sort(key=lambda pair: -pair[1])
    tensors = ", ".join(f"{name} {size:,}" for name, size in found[:_SHOWN])
    return {"node": node, "alive": f"{reach(alive) + outputs:,} bytes at this step: {tensors}"}


def fullest(memory: Mapping[str, Any]) -> tuple[int, list[Piece]]:
    """The first position with the most bytes alive, and what these are."""
    alive: list[list[Piece]] = [[] for _ in memory["steps"]]
    for number, size, start, end, offset in memory["values"]:
        for position in range(start, end + 1):
            alive[position].append(Piece(number, size, offset))
    for position, size, offset in memory["scratch"]:
        alive[position].append(Piece(None, size, offset))
    best = max(range(len(alive)), key=lambda position: reach(alive[position]))
    return best, alive[best]


def reach(pieces: Iterable[Piece]) -> int:
    """Bytes that pieces take; those that lie in one another count once."""
    total = top = 0
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        end = piece.offset + piece.bytes
        total += max(0, end - max(top, piece.offset))
        top = max(top, end)
    return total


def _named(
    values: Mapping[int, Value], piece: Piece, node: Node, show: Callable[[Value], str]
) -> str:
    if piece.value is None:
        return f"scratch of {node}"
    value = values.get(piece.value)
    return "a copy" if value is None else show(value)

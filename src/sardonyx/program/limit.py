"""Errors of runs over the memory limit: the step with the peak, the largest tensors there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sardonyx._native import Storage
from sardonyx.base.records import frozen
from sardonyx.errors import RuntimeException
from sardonyx.graph.graph import Node, Value
from sardonyx.program.segment_builder import ABSENT, SegmentBuilder

LIMIT: Final = "sardonyx.max_arena_bytes"
_SHOWN: Final = 4  # tensors in a message


@frozen
class ArenaRange:
    """Bytes of an arena: those of a value, or the scratch of a step (`value` is None)."""

    value: int | None
    bytes: int
    offset: int


def limit_error(needed: int, allowed: int, **where: object) -> RuntimeException:
    """Return the error of a run that needs more bytes than the limit."""
    return RuntimeException(
        f"a run with these inputs takes {needed:,} bytes for arena and outputs, "
        f"and {LIMIT} allows {allowed:,}",
        **where,
        hint=f"feed a smaller batch or shorter inputs, or raise {LIMIT} "
        "(or max_mem, if a shared allocator set it)",
    )


def describe_peak(
    segment: SegmentBuilder, memory: Mapping[str, Any], show: Callable[[Value], str]
) -> dict[str, object]:
    """Return the step where most bytes are live, and the largest tensors there, for an error.

    `memory` is the segment's report of `Runnable.memory_of`; `show` formats a value with its shape.
    Outputs are allocated before the first step, so they count at every step.
    """
    position, live = peak(memory)
    node = segment.steps[memory["steps"][position]].node
    values = segment.values_by_number
    sizes = [(_described(values, each, node, show), each.bytes) for each in live]
    numbers = {v.at: n for n, v in enumerate(segment.values) if v.storage is Storage.EXPORTED}
    output_bytes = 0
    for slot, size in memory["exports"]:
        value = values.get(numbers.get(slot, ABSENT))
        sizes.append(("an output" if value is None else f"{show(value)} (output)", size))
        output_bytes += size
    sizes.sort(key=lambda pair: -pair[1])
    tensors = ", ".join(f"{name} {size:,}" for name, size in sizes[:_SHOWN])
    total = union_bytes(live) + output_bytes
    return {"node": node, "alive": f"{total:,} bytes at this step: {tensors}"}


def peak(memory: Mapping[str, Any]) -> tuple[int, list[ArenaRange]]:
    """Return the first position in the execution order with the most live bytes, and those."""
    live: list[list[ArenaRange]] = [[] for _ in memory["steps"]]  # by position
    for number, size, start, end, offset in memory["values"]:
        for position in range(start, end + 1):
            live[position].append(ArenaRange(number, size, offset))
    for position, size, offset in memory["scratch"]:
        live[position].append(ArenaRange(None, size, offset))
    best = max(range(len(live)), key=lambda position: union_bytes(live[position]))
    return best, live[best]


def union_bytes(ranges: Iterable[ArenaRange]) -> int:
    """Return the bytes of the union of ranges: values that alias one another count once."""
    # A sweep over ascending offsets; `top` is the end of what is counted.
    total = top = 0
    for each in sorted(ranges, key=lambda each: each.offset):
        end = each.offset + each.bytes
        total += max(0, end - max(top, each.offset))
        top = max(top, end)
    return total


def _described(
    values: Mapping[int, Value], each: ArenaRange, node: Node, show: Callable[[Value], str]
) -> str:
    if each.value is None:
        return f"scratch of {node}"
    value = values.get(each.value)
    return "a copy" if value is None else show(value)

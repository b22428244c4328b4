"""The annotations of nodes that orders go by, as a file has them: metadata of the node."""

from __future__ import annotations

from typing import Final

from sardonyx._native import NodeRecord
from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import MAX_PRIORITY

PRIORITY: Final = "sardonyx.priority"
BACKWARD: Final = "sardonyx.backward"


def annotations_of(record: NodeRecord, outer: tuple[int, bool]) -> tuple[int, bool]:
    """Priority, and whether a node is backward; what it does not say, the call around it does."""
    metadata = record.metadata
    if not metadata:
        return outer
    priority, is_backward = outer
    for key, text in metadata:
        if key == PRIORITY:
            priority = _number(key, text, MAX_PRIORITY)
        elif key == BACKWARD:
            is_backward = bool(_number(key, text, 1))
    return priority, is_backward


def _number(key: str, text: str, most: int) -> int:
    digits = text.removeprefix("-")
    number = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else most + 1
    if abs(number) > most:
        what = "0 or 1" if most == 1 else "a whole number of 32 bits"
        raise InvalidGraph(f"the metadata {key} of a node is {what}, not {text!r:.40}")
    return number

"""The memory that a step takes in addition to parameters, states and feeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sardonyx.program.native import NativeSegment
from sardonyx.program.run import bind
from sardonyx.session import InferenceSession
from sardonyx.session.feeds import check_feed


def step_bytes(session: InferenceSession, feeds: Mapping[str, Any]) -> int:
    """Return the bytes of the arenas for the sizes of a feed, the largest of all segments."""
    program = session._compiled.program
    sizes = bind(program, check_feed({i.name: i for i in program.inputs}, feeds))
    largest = 0
    for segment in program.segments:
        if isinstance(segment, NativeSegment) and segment.runnable is not None:
            names = [sizes.get(name, -1) for name in segment.names]
            for report in segment.runnable.memory(names):
                largest = max(largest, report["arena_bytes"])
    return largest

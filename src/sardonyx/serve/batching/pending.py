"""A pending request: queued, or in a run."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from sardonyx.base.records import mutable
from sardonyx.serve.protocol.datatypes import Array

if TYPE_CHECKING:
    from sardonyx.serve.batching.run import BatchRun


@mutable(eq=False)
class Pending:
    """One request. Owned by the event loop, except `feed`, which its run reads."""

    feed: Mapping[str, Array]
    rows: int
    length: int
    key: Hashable
    priority: int
    deadline: float | None  # of the loop's clock
    number: int  # order of arrival
    arrived: float
    future: asyncio.Future[list[Array]]
    size_bytes: int = 0
    started: float = 0.0  # of its run; 0 while it is queued
    timer: asyncio.TimerHandle | None = None
    run: BatchRun | None = None

    @property
    def precedence(self) -> tuple[int, int]:
        """Return the position in the queue: priority, then arrival."""
        return self.priority, self.number

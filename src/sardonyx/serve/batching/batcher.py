"""The request queue of one model, from which batches are run.

All state belongs to one event loop, so no locks are needed; only `BatchRun.execute` is called on
other threads. A run starts when one of the model's concurrency slots is free. Runs that are shorter
than a thread hand-over execute on the loop itself.
"""

from __future__ import annotations

import asyncio
import bisect
import math
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Final, Protocol

from sardonyx.serve.batching.arrivals import Arrivals
from sardonyx.serve.batching.choice import Batch, choose
from sardonyx.serve.batching.cost import CostModel
from sardonyx.serve.batching.joining import BatchLayout, element_count
from sardonyx.serve.batching.pending import Pending
from sardonyx.serve.batching.run import BatchRun
from sardonyx.serve.batching.settings import BatchSettings
from sardonyx.serve.protocol.datatypes import Array
from sardonyx.serve.refusals import Cancelled, DeadlineExceeded, Overloaded, Refusal, Unavailable
from sardonyx.session import InferenceSession

# A thread hand-over and back takes about as long, with the loop busy.
_INLINE_S: Final = 150e-6
_MEASURED: Final = 16  # runs after which the cost is trusted
_STOPPABLE_S: Final = 5e-3  # longer runs can be cancelled


class Observer(Protocol):
    """Callbacks about queues and runs, for metrics."""

    def queued(self, change: int) -> None:
        """The queue has grown by `change` requests (negative: shrunk)."""

    def ran(self, run: BatchRun, waited_s: list[float]) -> None:
        """A run has ended; its requests were queued for `waited_s`."""


class Batcher:
    """Queues the requests of a session, and batches them where that saves time."""

    def __init__(
        self,
        session: InferenceSession,
        layout: BatchLayout | None,
        settings: BatchSettings,
        executor: Executor,
        observer: Observer,
    ) -> None:
        """`layout` is None if requests cannot be joined."""
        self.cost = CostModel()
        self.is_predictable = True  # False: the values of inputs decide how long a run takes
        self._session = session
        self._layout = layout if settings.max_rows > 1 else None
        self._settings = settings
        self._executor = executor
        self._observer = observer
        self._arrivals = Arrivals()
        self._queue: list[Pending] = []
        self._queued_bytes = 0
        self._running: set[BatchRun] = set()
        self._n_started = 0
        self._number = 0
        self._free_since: float | None = None  # since when the head of the queue could have run
        self._scheduled: asyncio.Handle | None = None
        self._is_closed = False
        self._idle: list[asyncio.Future[None]] = []

    @property
    def n_queued(self) -> int:
        """Return the number of requests that wait for a run."""
        return len(self._queue)

    @property
    def n_unanswered(self) -> int:
        """Return the number of pending requests and runs in flight."""
        return len(self._queue) + len(self._running)

    @property
    def is_batching(self) -> bool:
        """Return whether requests may be batched."""
        return self._layout is not None

    def submit(
        self,
        feed: Mapping[str, Array],
        priority: int = 0,
        timeout_s: float | None = None,
        arrived_s: float | None = None,
    ) -> Pending:
        """Queue a request, checked against the signature; its future gets the outputs.

        The timeout counts from `arrived_s`, by the loop's clock: now, or before its model was
        loaded.
        """
        loop = asyncio.get_running_loop()
        size_bytes = sum(array.nbytes for array in feed.values())
        self._check_capacity(size_bytes)
        now, layout, settings = loop.time(), self._layout, self._settings
        self._number += 1
        timeout_s = settings.default_timeout_s if timeout_s is None else timeout_s
        pending = Pending(
            feed,
            next(iter(feed.values())).shape[0] if layout is not None else 1,
            layout.length(feed) if layout is not None else element_count(feed),
            layout.key(feed) if layout is not None else None,
            priority or settings.default_priority,
            None if timeout_s is None else (arrived_s or now) + timeout_s,
            self._number,
            now,
            loop.create_future(),
            size_bytes,
        )
        if pending.deadline is not None:
            late = DeadlineExceeded(f"there was no answer within {timeout_s:g} s")
            pending.timer = loop.call_at(pending.deadline, self.abandon, pending, late)
        self._arrivals.add(now)
        bisect.insort(self._queue, pending, key=_precedence)
        self._queued_bytes += size_bytes
        self._observer.queued(1)
        self._schedule(loop)
        return pending

    def _check_capacity(self, size_bytes: int) -> None:
        if self._is_closed:
            raise Unavailable("the model is being unloaded")
        settings = self._settings
        is_full = len(self._queue) >= settings.queue_requests
        if is_full or (self._queue and self._queued_bytes + size_bytes > settings.queue_bytes):
            elements = sum(each.rows * each.length for each in self._queue)
            seconds = self.cost.seconds(elements) / settings.concurrency
            raise Overloaded(
                f"{len(self._queue)} requests of this model are queued: try again later",
                min(max(1, math.ceil(seconds)), 60),
            )

    def abandon(self, pending: Pending, reason: Refusal | None = None) -> None:
        """Cancel a request whose client has disconnected, or whose deadline has passed."""
        if pending.future.done() and pending.run is None and not self._is_queued(pending):
            return
        if not pending.future.done():
            if reason is None:
                pending.future.cancel()
            else:
                pending.future.set_exception(reason)
        if pending.timer is not None:
            pending.timer.cancel()
        if pending.run is not None:
            pending.run.leave()
            pending.run = None
        elif self._is_queued(pending):
            self._queue.remove(pending)
            self._dequeued(pending)
            self._note_idle()

    def _is_queued(self, pending: Pending) -> bool:
        position = bisect.bisect_left(self._queue, pending.precedence, key=_precedence)
        return position < len(self._queue) and self._queue[position] is pending

    def _dequeued(self, pending: Pending) -> None:
        self._queued_bytes -= pending.size_bytes
        self._observer.queued(-1)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start runs after the loop has parsed the pending input of all connections."""
        if len(self._running) >= self._settings.concurrency:
            return
        if isinstance(self._scheduled, asyncio.TimerHandle):
            if len(self._queue) < self._settings.max_rows:
                return  # the batch waits for more
            self._scheduled.cancel()
            self._scheduled = None
        if self._scheduled is None:
            self._scheduled = loop.call_soon(self._start_runs, loop)

    def _start_runs(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = None
        while self._queue and len(self._running) < self._settings.concurrency:
            batch = self._choose()
            now = loop.time()
            if not batch.is_full:
                since = self._free_since = self._free_since or now
                longest_s, fixed_s = self._settings.max_delay_s, self.cost.fixed_s
                wait_s = self._arrivals.wait_s(now, since, fixed_s, longest_s)
                if wait_s > 0:
                    self._scheduled = loop.call_later(wait_s, self._start_runs, loop)
                    return
            self._free_since = None
            self._start(batch, loop, now)

    def _choose(self) -> Batch:
        if self._layout is None:
            return Batch((0,), 1, self._queue[0].length, is_full=True)
        return choose(self._queue, self.cost, self._settings.max_rows)

    def _start(self, batch: Batch, loop: asyncio.AbstractEventLoop, now: float) -> None:
        chosen = set(batch.positions)
        members = [self._queue[position] for position in batch.positions]
        self._queue = [each for i, each in enumerate(self._queue) if i not in chosen]
        expected_s = self.cost.seconds(batch.elements)
        has_deadline = any(member.deadline is not None for member in members)
        is_known = self.is_predictable and self._n_started > _MEASURED
        is_inline = is_known and expected_s < _INLINE_S
        can_stop = not is_inline and (has_deadline or not is_known or expected_s > _STOPPABLE_S)
        run = BatchRun(members, batch.length, can_stop)
        for member in members:
            self._dequeued(member)
            member.run, member.started = run, now
        self._running.add(run)
        self._n_started += 1
        if is_inline:
            run.execute(self._session, self._layout)
            self._running.discard(run)
            if isinstance(run.outcome, list):
                self.cost.add(run.elements, run.seconds)
            self._finish(run, loop)
        else:
            self._executor.submit(self._execute, run, loop)

    def _execute(self, run: BatchRun, loop: asyncio.AbstractEventLoop) -> None:
        run.execute(self._session, self._layout)
        loop.call_soon_threadsafe(self._continue, run, loop)

    def _continue(self, run: BatchRun, loop: asyncio.AbstractEventLoop) -> None:
        """Start the next run before the requests of the last one are answered, which takes time."""
        self._running.discard(run)
        if isinstance(run.outcome, list):
            self.cost.add(run.elements, run.seconds)
            if self._scheduled is None:
                self._start_runs(loop)
        self._finish(run, loop)

    def _finish(self, run: BatchRun, loop: asyncio.AbstractEventLoop) -> None:
        outcome, members = run.outcome, run.members
        if isinstance(outcome, list):
            self._observer.ran(run, [each.started - each.arrived for each in members])
            for member, outputs in zip(members, outcome, strict=True):
                if member.run is run:
                    _answer(member, outputs)
        elif len(members) > 1:
            self._repeat_alone(run)
        else:
            for member in members:
                if member.run is run:
                    _answer(member, outcome)
        self._schedule(loop)
        self._note_idle()

    def _repeat_alone(self, run: BatchRun) -> None:
        """Retry the requests of a failed batch one by one: only those at fault fail again."""
        for member in run.members:
            if member.run is run:
                member.run, member.key = None, object()
                bisect.insort(self._queue, member, key=_precedence)
                self._queued_bytes += member.size_bytes
                self._observer.queued(1)

    def _note_idle(self) -> None:
        if self._idle and not self.n_unanswered:
            for waiter in self._idle:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle.clear()

    async def drained(self) -> None:
        """Wait until the queue is drained. Requests may still arrive meanwhile."""
        if self.n_unanswered:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter

    async def close(self, timeout_s: float) -> None:
        """Refuse new requests and drain the queue; cancel what is left after the timeout."""
        self._is_closed = True
        try:
            await asyncio.wait_for(self.drained(), timeout_s)
        except TimeoutError:
            waiting = [*self._queue, *(each for run in self._running for each in run.members)]
            for pending in waiting:
                self.abandon(pending, Unavailable("the model was unloaded"))


def _precedence(pending: Pending) -> tuple[int, int]:
    return pending.precedence


def _answer(member: Pending, outcome: list[Array] | Refusal | None) -> None:
    member.run = None
    if member.timer is not None:
        member.timer.cancel()
    if member.future.done():
        return
    if isinstance(outcome, list):
        member.future.set_result(outcome)
    else:
        member.future.set_exception(outcome or Cancelled("the run was ended"))

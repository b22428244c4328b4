"""Queues: which requests run together, when, and what ends them early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.errors import Fail, InvalidArgument
from sardonyx.serve.batching.arrivals import Arrivals
from sardonyx.serve.batching.batcher import Batcher
from sardonyx.serve.batching.choice import choose
from sardonyx.serve.batching.cost import CostModel
from sardonyx.serve.batching.joining import BatchLayout, Padding
from sardonyx.serve.batching.run import BatchRun
from sardonyx.serve.batching.settings import BatchSettings
from sardonyx.serve.refusals import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    ModelFailed,
    Overloaded,
    Refusal,
    Unavailable,
)


@dataclass
class Item:
    rows: int
    length: int = 1
    key: int = 0


def cost(fixed: float, per_element: float) -> CostModel:
    model = CostModel()
    for elements in (1, 1000):
        model.add(elements, fixed + per_element * elements)
    return model


ITEMS = st.lists(
    st.builds(Item, st.integers(1, 5), st.integers(1, 200), st.integers(0, 1)), min_size=1
)


@given(ITEMS, st.integers(1, 20), st.floats(0, 1e-2), st.floats(0, 1e-4))
def test_batches_are_within_their_limits(
    queue: list[Item], max_rows: int, fixed: float, per_element: float
) -> None:
    model = cost(fixed, per_element)
    batch = choose(queue, model, max_rows)
    chosen = [queue[position] for position in batch.positions]
    assert batch.positions[0] == 0
    assert len(set(batch.positions)) == len(batch.positions)
    assert {item.key for item in chosen} == {queue[0].key}
    assert batch.rows == sum(item.rows for item in chosen)
    assert batch.rows <= max(max_rows, queue[0].rows)
    assert batch.length == max(item.length for item in chosen)
    alone = sum(model.seconds(item.rows * item.length) for item in chosen)
    assert model.seconds(batch.elements) <= alone * 1.001 + 1e-9


@pytest.mark.parametrize(
    ("fixed", "per_element", "lengths", "expected"),
    [
        (1e-3, 1e-5, [10, 12, 100], [10, 12]),  # padding to 100 costs more than a run
        (1e-1, 1e-5, [10, 12, 100], [10, 12, 100]),
        (0.0, 1e-5, [10, 12], [10]),
        (1e-3, 1e-5, [50, 300, 51, 49], [50, 51, 49]),  # the nearest first
        (1e-3, 1e-5, [50, 70], [50, 70]),
        (1e-3, 1e-5, [50] * 10 + [70], [50] * 10),  # 70 would lengthen ten others
        (1e-3, 1e-5, [70] * 10 + [50], [70] * 10),  # the fixed part is shared already
    ],
)
def test_padding_is_weighed_against_runs(
    fixed: float, per_element: float, lengths: list[int], expected: list[int]
) -> None:
    queue = [Item(1, length) for length in lengths]
    batch = choose(queue, cost(fixed, per_element), 64)
    assert [lengths[position] for position in batch.positions] == expected


def test_a_batch_stops_growing_when_nothing_is_saved() -> None:
    batch = choose([Item(1)] * 500, cost(1e-4, 1e-4), 1000)
    assert 20 < batch.rows < 60
    assert batch.is_full


@given(st.floats(1e-6, 1e-2), st.floats(1e-9, 1e-4))
def test_batch_costs_are_estimated(fixed: float, per_element: float) -> None:
    model = CostModel()
    for elements in (10, 100, 1000, 20, 500):
        model.add(elements, fixed + per_element * elements)
    assert model.seconds(300) == pytest.approx(fixed + per_element * 300, rel=1e-3)


def test_one_slow_run_changes_little() -> None:
    model = cost(1e-3, 1e-5)
    for elements in (10, 20, 1000):
        model.add(elements, 1e-3 + 1e-5 * elements)
    model.add(10, 5.0)
    assert model.seconds(10) < 0.02


def test_waits_depend_on_the_rate_of_requests() -> None:
    busy, idle = Arrivals(), Arrivals()
    for i in range(300):
        busy.add(i * 1e-4)
        idle.add(i * 1e-1)
    now = 299e-4
    assert busy.wait_s(now, now, 2e-3, 5e-3) == pytest.approx(3e-4, rel=0.1)
    assert busy.wait_s(now, now, 1e-4, 5e-3) == 0  # a run costs less than the wait
    assert busy.wait_s(now, now, 2e-3, 0.0) == 0
    assert busy.wait_s(now, now - 2e-3, 2e-3, 5e-3) == pytest.approx(0)  # it has waited enough
    assert idle.wait_s(29.9, 29.9, 2e-3, 5e-3) == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=5))
def test_batched_outputs_are_split(sizes: list[tuple[int, int]]) -> None:
    layout = BatchLayout(Padding("s", {"ids": 1, "mask": 1}, {0: 1}, {"mask": -1}))
    feeds = [
        {"ids": np.full((n, s), 7), "mask": np.ones((n, s)), "bias": np.full((n, 2), s)}
        for n, s in sizes
    ]
    length = max(s for _, s in sizes)
    joined = layout.join(feeds, length)
    assert joined["ids"].shape == (sum(n for n, _ in sizes), length)
    if len(sizes) > 1:
        assert ((joined["ids"] == 0) == (joined["mask"] == -1)).all()
    outputs = [joined["ids"], joined["bias"]]
    parts = layout.split(outputs, [n for n, _ in sizes], [s for _, s in sizes])
    for feed, (ids, bias) in zip(feeds, parts, strict=True):
        assert np.array_equal(ids, feed["ids"])
        assert np.array_equal(bias, feed["bias"])


class Session:
    """A session that doubles x, and waits where it is told to."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.started = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()

    def run(self, names: None, feed: dict[str, Any], options: Any = None) -> list[Any]:
        x = feed["x"]
        self.sizes.append(len(x))
        self.started.release()
        while not self.go.wait(0.001):
            if options is not None and options.terminate:
                raise Fail("the run was ended by RunOptions.terminate")
        if (x < 0).any():
            raise InvalidArgument("x is negative")
        return [x * 2]


class Observer:
    def __init__(self) -> None:
        self.n_queued = 0
        self.rows: list[int] = []

    def queued(self, change: int) -> None:
        self.n_queued += change

    def ran(self, run: BatchRun, waited_s: list[float]) -> None:
        self.rows.append(run.rows)


class Bench:
    """A batcher over a session, on the running loop."""

    def __init__(self, **settings: Any) -> None:
        self.session, self.observer = Session(), Observer()
        self.executor = ThreadPoolExecutor(4)
        self.batcher = Batcher(
            self.session,  # type: ignore[arg-type]
            BatchLayout(),
            BatchSettings(**{"max_delay_s": 0.0, **settings}),
            self.executor,
            self.observer,
        )

    def submit(self, value: float, rows: int = 1, **more: Any) -> Any:
        return self.batcher.submit({"x": np.full((rows, 2), value, np.float32)}, **more)

    async def running(self) -> None:
        """Wait until a run has begun."""
        await asyncio.to_thread(self.session.started.acquire)


def scenario(**settings: Any) -> Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], Any]:
    """A test of a batcher with these settings, whose first run waits until `session.go`."""

    def decorate(body: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def test() -> None:
            async def go() -> None:
                bench = Bench(**settings)
                bench.session.go.clear()
                try:
                    await asyncio.wait_for(body(bench), 20)
                finally:
                    bench.session.go.set()
                    bench.executor.shutdown()
                assert bench.observer.n_queued == 0

            asyncio.run(go())

        test.__name__, test.__doc__ = body.__name__, body.__doc__
        return test

    return decorate


@scenario()
async def test_requests_that_wait_run_together(bench: Bench) -> None:
    first = bench.submit(1)
    await bench.running()
    others = [bench.submit(value, rows=2) for value in (2, 3, 4)]
    bench.session.go.set()
    results = await asyncio.gather(first.future, *(each.future for each in others))
    assert [float(result[0][0, 0]) for result in results] == [2, 4, 6, 8]
    assert [len(result[0]) for result in results] == [1, 2, 2, 2]
    assert bench.observer.rows == [1, 6]


@scenario(max_rows=4)
async def test_batches_have_a_limit(bench: Bench) -> None:
    first = bench.submit(0)
    await bench.running()
    others = [bench.submit(1) for _ in range(10)]
    bench.session.go.set()
    await asyncio.gather(first.future, *(each.future for each in others))
    assert bench.observer.rows == [1, 4, 4, 2]


@scenario(max_rows=1)
async def test_higher_priorities_run_first(bench: Bench) -> None:
    order: list[int] = []
    first = bench.submit(0)
    await bench.running()
    waiting = [bench.submit(1, priority=priority) for priority in (600, 0, 2, 2, 1)]
    for index, pending in enumerate(waiting):
        pending.future.add_done_callback(lambda _, index=index: order.append(index))
    bench.session.go.set()
    await asyncio.gather(first.future, *(each.future for each in waiting))
    assert order == [4, 2, 3, 1, 0]


@scenario(queue_requests=2)
async def test_a_full_queue_refuses(bench: Bench) -> None:
    first = bench.submit(0)
    await bench.running()
    waiting = [bench.submit(1), bench.submit(2)]
    with pytest.raises(Overloaded) as caught:
        bench.submit(3)
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s >= 1
    bench.session.go.set()
    await asyncio.gather(first.future, *(each.future for each in waiting))


@scenario(queue_bytes=100)
async def test_the_queue_has_a_limit_of_bytes(bench: Bench) -> None:
    first = bench.submit(0)
    await bench.running()
    large = bench.submit(1, rows=100)  # alone it may wait, whatever its size
    with pytest.raises(Overloaded):
        bench.submit(2)
    bench.session.go.set()
    await asyncio.gather(first.future, large.future)


@scenario()
async def test_deadlines_cancel_queued_and_running_requests(bench: Bench) -> None:
    running = bench.submit(0, timeout_s=0.02)
    await bench.running()
    waiting = bench.submit(1, timeout_s=0.01)
    for pending in (waiting, running):
        with pytest.raises(DeadlineExceeded, match=r"within 0\.0"):
            await pending.future
    await bench.batcher.drained()  # although the session was not told to go on


@scenario()
async def test_a_run_goes_on_while_somebody_waits(bench: Bench) -> None:
    late, patient = bench.submit(2, timeout_s=0.02), bench.submit(3, timeout_s=20)
    await bench.running()
    with pytest.raises(DeadlineExceeded):
        await late.future
    bench.session.go.set()
    assert (await patient.future)[0].tolist() == [[6, 6]]
    assert bench.session.sizes == [2]


@scenario()
async def test_requests_that_are_abandoned_leave_the_queue(bench: Bench) -> None:
    first = bench.submit(0)
    await bench.running()
    waiting = [bench.submit(value) for value in (1, 2, 3)]
    bench.batcher.abandon(waiting[1], Cancelled("gone"))
    bench.batcher.abandon(waiting[2])
    with pytest.raises(Cancelled):
        await waiting[1].future
    assert waiting[2].future.cancelled()
    bench.session.go.set()
    await asyncio.gather(first.future, waiting[0].future)
    assert bench.observer.rows == [1, 1]


@scenario()
async def test_a_failing_request_does_not_fail_others(bench: Bench) -> None:
    first = bench.submit(0)
    await bench.running()
    good, bad, fine = bench.submit(1), bench.submit(-1), bench.submit(3)
    bench.session.go.set()
    assert (await good.future)[0].tolist() == [[2, 2]]
    assert (await fine.future)[0].tolist() == [[6, 6]]
    with pytest.raises(BadRequest, match="x is negative"):
        await bad.future
    await first.future
    assert sorted(bench.session.sizes) == [1, 1, 1, 1, 3]


@scenario()
async def test_closing_drains_the_queue(bench: Bench) -> None:
    first = bench.submit(0)
    await bench.running()
    waiting = bench.submit(1)
    closing = asyncio.create_task(bench.batcher.close(20))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        bench.submit(2)
    bench.session.go.set()
    await closing
    assert first.future.done()
    assert waiting.future.done()


@scenario()
async def test_a_failing_request_does_not_fail_others_while_closing(bench: Bench) -> None:
    await_first = bench.submit(0)
    await bench.running()
    good, bad = bench.submit(1), bench.submit(-1)
    closing = asyncio.create_task(bench.batcher.close(20))
    await asyncio.sleep(0)
    bench.session.go.set()
    assert (await good.future)[0].tolist() == [[2, 2]]
    with pytest.raises(BadRequest, match="x is negative"):
        await bad.future
    await asyncio.gather(await_first.future, closing)


@scenario(concurrency=2)
async def test_two_runs_at_a_time(bench: Bench) -> None:
    first = bench.submit(0)
    await bench.running()
    second = bench.submit(1)
    await bench.running()  # while the first runs
    bench.session.go.set()
    await asyncio.gather(first.future, second.future)
    assert bench.observer.rows == [1, 1]


def test_outputs_without_a_row_each_are_an_error() -> None:
    class Mean:
        def run(self, names: None, feed: dict[str, Any], options: Any = None) -> list[Any]:
            return [feed["x"].mean(axis=0, keepdims=True)]

    async def outcome() -> Any:
        bench = Bench()
        members = [bench.submit(1), bench.submit(2)]
        run = BatchRun(members, 1, can_stop=False)
        run.execute(Mean(), BatchLayout())  # type: ignore[arg-type]
        await bench.batcher.close(0)
        for each in members:
            assert isinstance(
                each.future.exception() if each.future.done() else None, Refusal | None
            )
        return run.outcome

    assert isinstance(asyncio.run(outcome()), ModelFailed)

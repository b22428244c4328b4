"""The search for the execution order of least peak memory: correct, optimal, bounded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx._native import least_peak, order_peak
from tests.order_problems import FAMILIES, Net, Task, least, simulate

MANY = 20_000
SECONDS = 5.0  # a search whose work grew with the square of the tasks would take minutes


def legal(tasks: Sequence[Task], rng: random.Random) -> list[int]:
    """A random legal order."""
    waits = [len(set(preds)) for preds, *_ in tasks]
    readers: list[list[int]] = [[] for _ in tasks]
    for t, (preds, *_) in enumerate(tasks):
        for p in set(preds):
            readers[p].append(t)
    ready = [t for t, n in enumerate(waits) if n == 0]
    order = []
    while ready:
        t = ready.pop(rng.randrange(len(ready)))
        order.append(t)
        for r in readers[t]:
            waits[r] -= 1
            if waits[r] == 0:
                ready.append(r)
    return order


def is_legal(tasks: Sequence[Task], order: Sequence[int]) -> bool:
    """Whether an order has each task once, after its predecessors."""
    place = {t: i for i, t in enumerate(order)}
    return sorted(order) == list(range(len(tasks))) and all(
        place[p] < place[t] for t, (preds, *_) in enumerate(tasks) for p in preds
    )


@st.composite
def problems(draw: st.DrawFn, most: int) -> tuple[list[int], list[Task], list[int]]:
    """Any tasks: buffers written by several, touched twice, of no bytes; pairs that compete."""
    rng = random.Random(draw(st.integers(0, 1 << 40)))
    sizes = [rng.choice((0, 1, 2, 3, 4, 5, 5, 5, 8, 13)) for _ in range(rng.randint(1, most + 3))]
    density = rng.random() * 0.6
    tasks: list[Task] = []
    for t in range(rng.randint(1, most)):
        preds = [p for p in range(t) if rng.random() < density * rng.random()]
        touches = [rng.randrange(len(sizes)) for _ in range(rng.randint(0, 4))]
        distinct = sorted(set(touches))
        pairs = [(a, b) for a in distinct for b in distinct if a != b and rng.random() < 0.2]
        rng.shuffle(pairs)
        tasks.append((preds, touches, pairs, rng.choice((0, 0, 0, 2, 7))))
    return sizes, tasks, legal(tasks, rng)


@given(problems(most=20))
def test_peak_is_that_of_a_simulation(problem: tuple[list[int], list[Task], list[int]]) -> None:
    sizes, tasks, order = problem
    assert order_peak(sizes, tasks, order) == simulate(sizes, tasks, order)


@settings(max_examples=300)
@given(problems(most=9))
def test_small_problems_are_solved(problem: tuple[list[int], list[Task], list[int]]) -> None:
    sizes, tasks, order = problem
    found = least_peak(sizes, tasks, order)
    assert is_legal(tasks, found)
    assert simulate(sizes, tasks, found) == least(sizes, tasks)


@settings(max_examples=100)
@given(problems(most=60), st.integers(0, 1))
def test_never_above_the_given_order(
    problem: tuple[list[int], list[Task], list[int]], effort: int
) -> None:
    sizes, tasks, order = problem
    found = least_peak(sizes, tasks, order, effort)
    assert is_legal(tasks, found)
    before, after = (simulate(sizes, tasks, o) for o in (order, found))
    assert after < before or found == order
    assert least_peak(sizes, tasks, order, effort) == found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", FAMILIES)
def test_small_families_are_solved(family: str, seed: int) -> None:
    net = FAMILIES[family](10, random.Random(seed))
    order = legal(net.tasks, random.Random(seed))
    if len(net.tasks) > 14:
        net.tasks, order = net.tasks[:14], [t for t in order if t < 14]
    found = least_peak(net.sizes, net.tasks, order)
    assert is_legal(net.tasks, found)
    assert order_peak(net.sizes, net.tasks, found) == least(net.sizes, net.tasks)


@pytest.mark.parametrize("size", [60, 300])
@pytest.mark.parametrize("family", FAMILIES)
def test_random_initial_orders_of_families(family: str, size: int) -> None:
    """From the order of a random walk the search comes near to what it finds from a good one."""
    net = FAMILIES[family](size, random.Random(size))
    good = order_peak(net.sizes, net.tasks, least_peak(net.sizes, net.tasks, net.order))
    walk = legal(net.tasks, random.Random(1))
    found = least_peak(net.sizes, net.tasks, walk, 1)
    assert is_legal(net.tasks, found)
    assert order_peak(net.sizes, net.tasks, found) <= min(
        1.5 * good, order_peak(net.sizes, net.tasks, walk)
    )


@pytest.mark.parametrize("seed", range(4))
def test_more_effort_is_never_worse(seed: int) -> None:
    net = FAMILIES["scattered"](120, random.Random(seed))
    found = [least_peak(net.sizes, net.tasks, net.order, effort) for effort in range(3)]
    peaks = [order_peak(net.sizes, net.tasks, order) for order in found]
    assert peaks == sorted(peaks, reverse=True)


def test_branches_run_one_after_another() -> None:
    net = Net()
    x = net.op(1)
    ends = [net.op(1, net.op(100, x)) for _ in range(4)]
    net.op(1, *ends)
    wide = [0, 1, 3, 5, 7, 2, 4, 6, 8, 9]
    assert order_peak(net.sizes, net.tasks, wide) == 401
    assert order_peak(net.sizes, net.tasks, least_peak(net.sizes, net.tasks, wide)) == 104


def test_the_branch_that_leaves_least_comes_first() -> None:
    net = Net()
    x = net.op(10)
    small, large = net.op(1, net.op(100, x)), net.op(90, net.op(100, x))
    net.op(1, large, small)
    order = [0, 3, 4, 1, 2, 5]
    assert order_peak(net.sizes, net.tasks, order) == 200
    found = least_peak(net.sizes, net.tasks, order)
    assert found == [0, 1, 2, 3, 4, 5]
    assert order_peak(net.sizes, net.tasks, found) == 191


def test_gradients_of_weights_run_as_soon_as_they_free_something() -> None:
    net = Net()
    kept = [net.op(10)]
    for _ in range(5):
        kept.append(net.op(10, kept[-1]))
    g, late = kept.pop(), []
    for x in reversed(kept):
        late.append((g, x))
        g = net.op(10, g)
    for dy, x in late:
        net.op(0, dy, x)
    assert order_peak(net.sizes, net.tasks, net.order) == 110
    assert order_peak(net.sizes, net.tasks, least_peak(net.sizes, net.tasks, net.order)) == 60


def test_a_single_legal_order_is_returned() -> None:
    net = Net()
    x = net.op(3)
    for size in range(1, 50):
        x = net.op(size * 37 % 11, x)
    assert least_peak(net.sizes, net.tasks, net.order, 3) == net.order


def test_empty_problems() -> None:
    assert least_peak([], [], []) == []
    assert order_peak([5], [], []) == 0
    assert least_peak([5], [([], [0], [], 3)], [0]) == [0]


def independent(rng: random.Random) -> Net:
    net = Net()
    for _ in range(MANY):
        net.op(rng.randint(1, 99), scratch=rng.randint(0, 50))
    return net


def one_source(rng: random.Random) -> Net:
    net = Net()
    x = net.op(50)
    net.op(1, *[net.op(rng.randint(1, 99), x, scratch=rng.randint(0, 99)) for _ in range(MANY)])
    return net


def ladder(rng: random.Random) -> Net:
    net = Net()
    a, b = net.op(9), net.op(8)
    for _ in range(MANY // 2):
        a, b = net.op(rng.randint(1, 99), a), net.op(rng.randint(1, 99), a, b)
    return net


def chain(rng: random.Random) -> Net:
    net = Net()
    x = net.op(5)
    for _ in range(MANY):
        x = net.op(rng.randint(1, 99), x)
    return net


def chains(rng: random.Random) -> Net:
    net = Net()
    ends = [net.op(5) for _ in range(20)]
    for _ in range(MANY // 20):
        ends = [net.op(rng.randint(1, 99), e) for e in ends]
    net.op(1, *ends)
    return net


def layers(rng: random.Random) -> Net:
    net = Net()
    row = [net.op(rng.randint(1, 99)) for _ in range(20)]
    for _ in range(MANY // 20):
        row = [net.op(rng.randint(1, 99), *rng.sample(row, 10)) for _ in row]
    return net


def one_buffer(rng: random.Random) -> Net:
    net = Net()
    x, joined = net.op(3), net.buffer(1000)
    for _ in range(MANY):
        net.write(joined, [net.op(rng.randint(1, 9), x)])
    return net


def many_pairs(rng: random.Random) -> Net:
    net = Net()
    joined = net.op(10, *[net.op(10) for _ in range(MANY // 2)], shares=True)
    for _ in range(MANY // 2):
        net.op(10, joined, shares=True)
    return net


@pytest.mark.parametrize(
    "make", [independent, one_source, ladder, chain, chains, layers, one_buffer, many_pairs]
)
def test_large_problems_take_bounded_work(make: Callable[[random.Random], Net]) -> None:
    net = make(random.Random(0))
    order = legal(net.tasks, random.Random(0))
    start = time.perf_counter()
    found = least_peak(net.sizes, net.tasks, order)
    assert time.perf_counter() - start < SECONDS
    assert is_legal(net.tasks, found)
    assert order_peak(net.sizes, net.tasks, found) <= order_peak(net.sizes, net.tasks, order)


@pytest.mark.parametrize(
    ("sizes", "tasks", "order", "message"),
    [
        ([1], [([], [0], [], 0)], [], "the order has 0 tasks of 1"),
        ([1], [([], [0], [], 0)], [1], r"task of the order 1 is outside \[0, 1\)"),
        ([1], [([], [], [], 0)] * 2, [0, 0], "task 0 comes twice"),
        ([1], [([1], [], [], 0), ([], [], [], 0)], [0, 1], "task 0 comes before its predecessor 1"),
        ([1], [([0], [], [], 0)], [0], "task 0 comes before its predecessor 0"),
        ([1], [([7], [], [], 0)], [0], r"predecessor of task 0 7 is outside \[0, 1\)"),
        ([1], [([], [-1], [], 0)], [0], r"buffer of task 0 -1 is outside \[0, 1\)"),
        ([1, 1], [([], [0], [(0, 1)], 0)], [0], r"pair \(0, 1\) of task 0 is not of two buffers"),
        ([1], [([], [0], [(0, 0)], 0)], [0], r"pair \(0, 0\) of task 0 is not of two buffers"),
        ([-1], [([], [0], [], 0)], [0], "the size of buffer 0 is negative: -1"),
        ([1], [([], [0], [], -3)], [0], "scratch of task 0 is negative: -3"),
        ([1 << 61], [([], [0], [], 0)], [0], "the size of buffer 0 makes the tasks need too many"),
    ],
)
def test_malformed_problems_are_refused(
    sizes: list[int], tasks: list[Task], order: list[int], message: str
) -> None:
    for search in (least_peak, order_peak):
        with pytest.raises(ValueError, match=message):
            search(sizes, tasks, order)


@pytest.mark.parametrize("effort", [-1, 4])
def test_efforts_out_of_range_are_refused(effort: int) -> None:
    with pytest.raises(ValueError, match=rf"effort {effort} is outside \[0, 3\]"):
        least_peak([1], [([], [0], [], 0)], [0], effort)

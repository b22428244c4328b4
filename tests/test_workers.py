"""Worker processes: every seed has a result, even if its process dies."""

from __future__ import annotations

import itertools
import os
import select
import signal

import pytest

from tests.workers import Plan, Result, Task, hunt


def double() -> Task:
    return lambda seed: {"seed": seed, "double": 2 * seed, "pid": os.getpid()}


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_seed_once(jobs: int) -> None:
    found = list(hunt(double, Plan(range(5, 105), jobs)))
    assert sorted(r["seed"] for r in found) == list(range(5, 105))
    assert all(r["double"] == 2 * r["seed"] for r in found)
    assert len({r["pid"] for r in found}) <= jobs


def test_a_process_is_renewed() -> None:
    found = list(hunt(double, Plan(range(100), renew=20)))
    assert len(found) == 100
    assert len({r["pid"] for r in found}) > 1


def dies() -> Task:
    def task(seed: int) -> Result:
        if seed % 10 == 3:
            os.write(2, b"the last words of %d" % seed)
            os.kill(os.getpid(), signal.SIGKILL)
        return {"seed": seed}

    return task


def test_a_crash_is_assigned_to_its_seed() -> None:
    found = {r["seed"]: r for r in hunt(dies, Plan(range(25), jobs=2))}
    assert sorted(found) == list(range(25))
    assert {s for s, r in found.items() if "died" in r} == {3, 13, 23}
    assert found[13]["died"] == "exit -9"
    assert found[13]["said"].endswith("the last words of 13")


def hangs() -> Task:
    def task(seed: int) -> Result:
        while seed == 2:
            signal.pause()
        return {"seed": seed}

    return task


def test_a_hang_is_reported_with_its_place() -> None:
    found = {r["seed"]: r for r in hunt(hangs, Plan(range(5), patience=0.5))}
    assert sorted(found) == list(range(5))
    assert found[2]["died"].startswith("no answer in 0.5 s")
    assert "in task" in found[2]["said"]


def test_a_time_limit() -> None:
    assert list(hunt(double, Plan(range(100), seconds=0.0))) == []


def test_workers_do_not_outlive_their_parent() -> None:
    read, write = os.pipe()
    if not os.fork():
        for result in hunt(double, Plan(itertools.count())):
            os.write(write, b"%d " % result["pid"])
            os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
    try:
        gone = os.pidfd_open(int(os.read(read, 100)))
    except ProcessLookupError:
        return
    assert select.select([gone], [], [], 30)[0]

"""Locks: after a fork, and asked for twice by one thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

import sardonyx
import sardonyx._native as native
from sardonyx.base.locks import Lock, NonReentrantLock
from sardonyx.errors import ValueFault


def in_child(call: Callable[[], bool]) -> bool:
    """Return the result of a call in a forked child."""
    child = os.fork()
    if child == 0:
        os._exit(0 if call() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_keeps_locks_of_the_forking_thread() -> None:
    lock = Lock()

    def is_held() -> bool:
        return lock.is_held_here and not lock.try_acquire()

    with lock:
        assert in_child(is_held)
    assert in_child(lock.try_acquire)


def test_a_fork_releases_locks_of_other_threads() -> None:
    lock, held, done = Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    try:
        assert in_child(lock.try_acquire)
    finally:
        done.set()
        thread.join()


def test_a_fork_during_the_first_read_of_run_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag of `terminate` is made without a lock: a child would wait for it forever."""
    entered, done = threading.Event(), threading.Event()

    def slow() -> native.Stop:
        entered.set()
        done.wait(10)
        return stop()

    def reads_options() -> bool:
        signal.alarm(10)
        done.set()
        return not sardonyx.RunOptions().terminate

    stop = native.Stop
    monkeypatch.setattr(native, "Stop", slow)
    thread = threading.Thread(target=lambda: sardonyx.RunOptions().terminate)
    thread.start()
    assert entered.wait(10)
    try:
        assert in_child(reads_options)
    finally:
        done.set()
        thread.join()


def test_a_thread_does_not_deadlock_with_itself() -> None:
    lock = NonReentrantLock("compiling")
    with lock, pytest.raises(ValueFault, match="this thread is compiling"):
        lock.__enter__()
    with lock:
        pass

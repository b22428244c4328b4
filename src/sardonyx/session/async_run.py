"""Runs on other threads, for `run_async`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sardonyx._native as native
from sardonyx.base.locks import Lock
from sardonyx.base.log import logger

Callback = Callable[[list[Any], Any, str], None]

_LOCK = Lock()
_pool: ThreadPoolExecutor | None = None


def _forget() -> None:
    """A fork has none of the threads: it makes a pool of its own when it needs one."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget)


def start(run: Callable[[], list[Any]], callback: Callback, user_data: Any) -> None:
    """Runs on a thread of ours, and hands results or what went wrong to the callback there."""
    global _pool
    with _LOCK:
        if _pool is None:
            _pool = ThreadPoolExecutor(native.usable_cpus(), "sardonyx-run")
        _pool.submit(_work, run, callback, user_data)


def _work(run: Callable[[], list[Any]], callback: Callback, user_data: Any) -> None:
    """Nothing ends this thread: not even an interrupt or SystemExit that a custom op raises."""
    results, wrong = [], ""
    try:
        results = run()
    except BaseException as error:
        wrong = str(error) or type(error).__name__
    try:
        callback(results, user_data, wrong)
    except BaseException:
        logger.exception("the callback of run_async failed")

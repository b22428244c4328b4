"""Run sessions on a process-wide thread pool, for `run_async`.

Thread-safe: `_LOCK` guards the creation of the executor `_executor`, which every session shares.
"""

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
_executor: ThreadPoolExecutor | None = None


def _after_fork() -> None:
    """Drop the executor: a forked child has none of its threads and creates its own on demand."""
    global _executor
    _executor = None


os.register_at_fork(after_in_child=_after_fork)


def submit(run: Callable[[], list[Any]], callback: Callback, user_data: Any) -> None:
    """Call `run` on a pool thread, then callback(results, user_data, error text) there."""
    global _executor
    with _LOCK:
        if _executor is None:
            _executor = ThreadPoolExecutor(native.usable_cpus(), "sardonyx-run")
        _executor.submit(_run_and_report, run, callback, user_data)


def _run_and_report(run: Callable[[], list[Any]], callback: Callback, user_data: Any) -> None:
    """Run and call the callback; no exception, not even SystemExit, ends the pool thread."""
    results, error_text = [], ""
    try:
        results = run()
    except BaseException as error:
        error_text = str(error) or type(error).__name__
    try:
        callback(results, user_data, error_text)
    except BaseException:
        logger.exception("the callback of run_async failed")

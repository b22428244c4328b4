"""Runs functions on several threads at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_concurrently(*calls: Callable[[int], object], times: int = 1) -> None:
    """Call each function with 0, 1, ... on a thread of its own; raise the first error."""
    errors: list[BaseException] = []
    begin = threading.Barrier(len(calls), timeout=60)

    def work(call: Callable[[int], object]) -> None:
        try:
            begin.wait()
            for i in range(times):
                if errors:
                    return
                call(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]

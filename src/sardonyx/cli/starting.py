"""A session's start, timed from the first import on. `profile --start` runs it as a script.

It is given a JSON object: the model, threads, providers and config entries, a file of inputs with
their types, and answers with one. Whatever it imports itself is part of what it measures, so it
imports little.
"""

from __future__ import annotations

import builtins
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

_LEAST = 20e-6  # seconds: below, a module was there already


class Imports:
    """When modules were imported, those that other modules import counted with them."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self._is_inside = False
        builtins.__import__ = self._timed(builtins.__import__)
        importlib.import_module = self._timed(importlib.import_module)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return call(*args, **kwargs)
            self._is_inside, began = True, time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._is_inside, now = False, time.perf_counter()
                if now - began > _LEAST:
                    self.spans.append((began, now))

        return run

    def within(self, begin: float, end: float) -> float:
        """The seconds of imports between two times."""
        return sum(b - a for a, b in self.spans if a >= begin and b <= end)


def started(given: dict[str, Any]) -> dict[str, Any]:
    """Seconds of imports, of each stage without them, of the whole session and of runs."""
    zero = time.perf_counter()
    import numpy  # noqa: F401 - most programs have it before

    has_numpy = time.perf_counter()
    imports = Imports()
    import sardonyx

    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = given["threads"]
    for key, value in given["entries"].items():
        options.add_session_config_entry(key, value)
    kind = sardonyx.InferenceSession
    began = time.perf_counter()
    providers = [tuple(pair) for pair in given["providers"]] or None
    session = kind(given["model"], options, providers=providers)
    ended = time.perf_counter()
    stages = {
        name: end - begin - imports.within(begin, end)
        for name, begin, end in session._compiled.stages.spans
    }
    return {
        "numpy": has_numpy - zero,
        "import": began - has_numpy,
        "import_later": imports.within(began, ended),
        "stages": stages,
        "session": ended - began,
        **_runs(session, given),
    }


def _runs(session: Any, given: dict[str, Any]) -> dict[str, float]:
    from sardonyx.cli.worker import read_arrays

    feed = read_arrays(given["inputs"], given["types"])
    times = []
    for _ in range(3):
        began = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - began)
    return {"first_run": times[0], "later_run": min(times[1:])}


if __name__ == "__main__":
    print(json.dumps(started(json.loads(sys.argv[1]))))

"""Measures the start-up of a session from the first import on. `profile --start` runs this script.

The argument is a JSON object: model, threads, providers, config entries, and a file of inputs with
their types. The answer is a JSON object on standard output. The script's own imports are part of
the measurement, so it has few.
"""

from __future__ import annotations

import builtins
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

_MIN_S = 20e-6  # shorter imports found the module in sys.modules


class Imports:
    """The times of imports; nested imports count for the outermost one."""

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
                if now - began > _MIN_S:
                    self.spans.append((began, now))

        return run

    def within(self, begin: float, end: float) -> float:
        """Return the seconds of imports between two times."""
        return sum(b - a for a, b in self.spans if a >= begin and b <= end)


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of imports, of each stage without them, of the session and of runs."""
    zero = time.perf_counter()
    import numpy  # noqa: F401 - most programs import it themselves

    has_numpy = time.perf_counter()
    imports = Imports()
    import sardonyx

    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = request["threads"]
    for key, value in request["entries"].items():
        options.add_session_config_entry(key, value)
    session_class = sardonyx.InferenceSession  # may be imported by this access
    began = time.perf_counter()
    providers = [tuple(pair) for pair in request["providers"]] or None
    session = session_class(request["model"], options, providers=providers)
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
        **_runs(session, request),
    }


def _runs(session: Any, request: dict[str, Any]) -> dict[str, float]:
    from sardonyx.cli.bench_worker import read_arrays

    feed = read_arrays(request["inputs"], request["types"])
    times = []
    for _ in range(3):
        began = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - began)
    return {"first_run": times[0], "later_run": min(times[1:])}


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))

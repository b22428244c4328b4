"""Stages of compiling a model: their times, and the context of unexpected errors in them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from sardonyx.errors import Recoverable, SardonyxError, as_sardonyx_error

# What a stage does, for error messages.
_DESCRIPTIONS: Final = {
    "load": "loading the model",
    "infer": "inferring the model's types and shapes",
    "optimize": "optimizing the graph",
    "save": "saving the optimized model",
    "lower": "lowering the graph",
    "place": "placing nodes on providers",
    "schedule": "ordering the nodes",
    "memory": "planning memory",
    "program": "emitting the program",
    "pack": "reading the pack",
    "write_pack": "writing the pack",
    "weights": "preparing the weights",
}


class Stages:
    """Times the stages of a load. Always on: it costs two clock readings per stage."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.start = time.perf_counter()
        self._before = before
        self.spans: list[tuple[str, float, float]] = []

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage, and convert unexpected exceptions in it to a SardonyxError."""
        self._before()
        started = time.perf_counter()
        try:
            yield
        except (SardonyxError, Recoverable):
            raise
        except Exception as error:
            raise as_sardonyx_error(error, _DESCRIPTIONS[name]) from error
        finally:
            self.spans.append((name, started, time.perf_counter()))

    def seconds(self) -> dict[str, float]:
        """Return the duration of each stage."""
        return {name: end - start for name, start, end in self.spans}

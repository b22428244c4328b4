"""Measures sessions: memory, time of the start, latency of runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sardonyx.base.records import frozen
from sardonyx.cli.worker import anonymous_bytes, unused
from sardonyx.errors import Fail

if TYPE_CHECKING:
    from sardonyx.session import InferenceSession

MAX_RUNS: Final = 100_000
LEAST_RUNS: Final = 3


def growth(before: int | None) -> int | None:
    """How much anonymous memory was added since then."""
    now = anonymous_bytes()
    return None if now is None or before is None else max(0, now - before)


@frozen
class Latency:
    """Times of repeated runs, in seconds."""

    median: float
    best: float
    runs: int


@frozen
class Start:
    """A session, and what it took to make it."""

    session: InferenceSession
    seconds: float
    stages: dict[str, float]
    memory: int | None  # bytes


def latency(call: Callable[[], Any], seconds: float) -> Latency:
    """Calls for about so long, and at least a few times unless one call takes longer than that."""
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < MAX_RUNS:
        before = time.perf_counter()
        call()
        now = time.perf_counter()
        times.append(now - before)
        passed = now - started
        if passed >= seconds and (len(times) >= LEAST_RUNS or passed >= 2 * seconds):
            break
    return Latency(statistics.median(times), min(times), len(times))


def start(
    model: Any,
    threads: int = 0,
    profile: str | None = None,
    reads_weights: bool = True,
    entries: Mapping[str, str] | None = None,
    providers: Sequence[tuple[str, dict[str, str]]] = (),
) -> Start:
    """A new session for a model; `profile` is the prefix of a trace's file name."""
    from sardonyx.ort.options import SessionOptions
    from sardonyx.session import InferenceSession

    options = SessionOptions()
    options.intra_op_num_threads = threads
    if not reads_weights:
        options.add_session_config_entry("sardonyx.defer_weights", "1")
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, profile
    before, began = anonymous_bytes(), time.perf_counter()
    session = InferenceSession(model, options, providers=list(providers) or None)
    check_providers(session, providers)
    seconds = time.perf_counter() - began
    return Start(session, seconds, session._compiled.stages.seconds(), growth(before))


def check_providers(session: Any, wanted: Sequence[tuple[str, Any]]) -> None:
    """Whoever names a provider on the command line wants no figures of another."""
    if what := unused(session, wanted):
        raise Fail(what, hint="a warning says why, or ask for another provider")


def first_run(session: InferenceSession, feed: Mapping[str, Any]) -> tuple[list[Any], int | None]:
    """The outputs of a first run, and the memory that it added."""
    before = anonymous_bytes()
    outputs = session.run(None, feed)
    return outputs, growth(before)

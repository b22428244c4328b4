"""Measurements of a session: memory, start-up time, latency, difference of outputs."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.cli.bench_worker import anonymous_bytes, unused
from sardonyx.errors import Fail
from sardonyx.ort.config_keys import Keys

if TYPE_CHECKING:
    from sardonyx.session import InferenceSession

MAX_RUNS: Final = 100_000
MIN_RUNS: Final = 3
_BUSY: Final = 0.1  # of all cores
_MIN_S: Final = 0.2  # the system counts in hundredths of a second


def growth(before: int | None) -> int | None:
    """Return the anonymous memory that was added since `before`."""
    now = anonymous_bytes()
    return None if now is None or before is None else max(0, now - before)


class OtherLoad:
    """The load of other processes since this object was made."""

    def __init__(self) -> None:
        self._began = _processor_seconds()
        self._own = time.process_time()
        self._at = time.perf_counter()

    def share(self) -> float | None:
        """Return the share of the machine's cores that they used; None if it is unknown."""
        now, passed = _processor_seconds(), time.perf_counter() - self._at
        if now is None or self._began is None or passed < _MIN_S:
            return None
        used = now[0] - self._began[0] - (time.process_time() - self._own)
        return max(0.0, used / (now[1] * passed))


def _processor_seconds() -> tuple[float, int] | None:
    """Return the seconds that all cores have worked, and their number; None if it is unknown."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    user, nice, system, _idle, _wait, *rest = map(int, lines[0][1:9])
    return (user + nice + system + sum(rest)) / ticks, len(lines) - 1


def busy_note(share: float | None) -> str:
    """Return a sentence about other processes if they took more than little of the machine."""
    if share is None or share < _BUSY:
        return ""
    return (
        f"the machine is busy: other processes use {share:.0%} of its cores, so times are longer "
        "than they would be alone"
    )


@frozen
class Latency:
    """Latency of repeated runs, in seconds."""

    median: float
    best: float
    runs: int


@frozen
class Start:
    """A session, and the time and memory of its creation."""

    session: InferenceSession
    seconds: float
    stages: dict[str, float]
    memory: int | None  # bytes


def latency(call: Callable[[], Any], seconds: float) -> Latency:
    """Call repeatedly for `seconds`; at least MIN_RUNS times, or for twice as long."""
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < MAX_RUNS:
        before = time.perf_counter()
        call()
        now = time.perf_counter()
        times.append(now - before)
        passed = now - started
        # A slow model is not run MIN_RUNS times if that takes more than twice the time.
        if passed >= seconds and (len(times) >= MIN_RUNS or passed >= 2 * seconds):
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
    """Create a session for a model; `profile` is the prefix of the profile's file name."""
    from sardonyx.ort.options import SessionOptions
    from sardonyx.session import InferenceSession

    options = SessionOptions()
    options.intra_op_num_threads = threads
    if not reads_weights:
        options.add_session_config_entry(Keys.DEFER_WEIGHTS, "1")
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, profile
    before, began = anonymous_bytes(), time.perf_counter()
    session = InferenceSession(model, options, providers=list(providers) or None)
    # The figures of another provider than the named one would mislead.
    if what := unused(session, providers):
        raise Fail(what, hint="see the warning for the reason, or name another provider")
    seconds = time.perf_counter() - began
    return Start(session, seconds, session._compiled.stages.seconds(), growth(before))


def difference(expected: Any, got: Any) -> float:
    """Return the largest difference, as a fraction of the largest expected value.

    It is infinite if shapes, kinds of types, strings or the positions of non-finite values differ.
    """
    if got is None or expected.shape != got.shape or expected.dtype.kind != got.dtype.kind:
        return float("inf")
    if expected.dtype.kind not in "fiubc":
        return 0.0 if np.array_equal(expected, got) else float("inf")
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(wide), got.astype(wide)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    a, b = a[finite], b[finite]
    if not np.isfinite(b).all():
        return float("inf")
    return float(np.abs(a - b).max(initial=0)) / (float(np.abs(a).max(initial=0)) or 1.0)

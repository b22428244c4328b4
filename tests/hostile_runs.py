"""Loads and runs a model that may be hostile, with limits of time and memory."""

from __future__ import annotations

import contextlib
import math
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import sardonyx
from sardonyx.graph.dtype import ALL
from tests.invalid_feeds import mutate_feeds
from tests.mutate import array
from tests.seed_models import WEIGHT_BYTES, WEIGHTS
from tests.two_paths import Start, agreed, checked, fast

DTYPES = {d.ort_name: d for d in ALL}
MAX_FED = 1 << 20  # elements of an input
RUN_SECONDS = 1.0  # before a run is terminated: a loop may have any number of iterations
MAX_COMPARED = 1 << 26  # bytes of outputs
REFUSED_FEEDS = ("Required inputs",)  # errors of Python's own classes, as onnxruntime has them


class Hang(BaseException):  # no handler of ordinary errors may swallow it
    """Something took too long."""


class Unfed(Exception):
    """The model wants an input that is too large to make."""


def load_and_run(
    source: bytes | Path, rng: Random, seconds: float = 10.0, invalid_feed_rate: float = 0.3
) -> str:
    """Return the outcome of a model: refused, failed, unfed, stopped or ran; raise for all else.

    The model runs on the checked path and, if that ended in time, on the fast path, each in a
    session of its own; Disagree is raised if they differ. `invalid_feed_rate` is the share of runs
    with feeds that do not match the model's declaration.
    """
    with within(seconds):
        options = _options(source, rng.choice((1, 1, 1, 2)))
        try:
            session = sardonyx.InferenceSession(source, options)
        except sardonyx.SardonyxError as error:
            str(error)
            return "refused"
        try:
            feeds = feeds_for(session, rng)
        except Unfed:
            return "unfed"
        if rng.random() < invalid_feed_rate:
            feeds = mutate_feeds(rng, feeds)
        return _run(session, feeds, lambda: sardonyx.InferenceSession(source, options))


def _options(source: bytes | Path, threads: int) -> sardonyx.SessionOptions:
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # Sessions with memory of the user's share no program, so that the second one compiles again.
    if isinstance(source, Path) or WEIGHTS.encode() in source:
        data = bytearray(WEIGHT_BYTES)
        options.add_external_initializers_from_files_in_memory([WEIGHTS], [data], [len(data)])
    return options


def _run(session: sardonyx.InferenceSession, feeds: dict[str, Any], again: Start) -> str:
    options = sardonyx.RunOptions()
    with ending(options, RUN_SECONDS):
        first = checked(session, feeds, options)
    if options.terminate:
        return "stopped"  # or would have been: the fast path has no timer to end it
    if _size(first) > MAX_COMPARED:
        return "ran"  # under a limit of memory a second one may not fit
    second = fast(again(), feeds)
    if _is_starved(first) or _is_starved(second):
        return "failed"
    try:
        agreed(first, second)
    except sardonyx.SardonyxError:
        return "failed"
    except (ValueError, TypeError) as error:
        if not str(error).startswith(REFUSED_FEEDS):
            raise
        return "failed"
    return "ran"


def _size(value: Any) -> int:
    """The bytes of arrays, in lists too."""
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return value.nbytes if isinstance(value, np.ndarray) else 0


def _is_starved(result: Any) -> bool:
    """Whether a run found no memory: how much there is depends on what ran before."""
    return isinstance(result, sardonyx.SardonyxError) and "out of memory" in str(result)


def feeds_for(session: sardonyx.InferenceSession, rng: Random) -> dict[str, Any]:
    """Inputs that fit the model."""
    sizes: dict[str, int] = {}
    return {i.name: _value(i.type, i.shape, sizes, rng) for i in session.get_inputs()}


def _value(kind: str, shape: list[Any] | None, sizes: dict[str, int], rng: Random) -> Any:
    outer, _, rest = kind.partition("(")
    inner = rest.removesuffix(")")
    if outer == "optional":
        return None if rng.random() < 0.3 else _value(inner, shape, sizes, rng)
    if outer == "seq":
        return [_value(inner, shape, sizes, rng) for _ in range(rng.randrange(3))]
    if outer == "map":
        return {}
    if outer != "tensor" or inner not in DTYPES:
        raise Unfed(kind)
    if shape is None:
        shape = [2] * rng.randrange(4)
    known = [
        d if isinstance(d, int) else sizes.setdefault(d or f"#{len(sizes)}", rng.randrange(4))
        for d in shape
    ]
    if math.prod(max(d, 1) for d in known) > MAX_FED or any(d < 0 for d in known):
        raise Unfed(f"{kind} of shape {known}")
    dtype = DTYPES[inner].np
    return array(rng, np.dtype(object) if inner == "string" else dtype, known)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises Hang in the main thread after some seconds."""

    def hang() -> None:
        raise Hang(f"not done after {seconds:g} s")

    with _alarm(seconds, hang):
        yield


@contextlib.contextmanager
def ending(options: sardonyx.RunOptions, seconds: float) -> Iterator[None]:
    """Tells a run to end after some seconds; native code looks at signals between its steps."""

    def end() -> None:
        options.terminate = True

    with _alarm(seconds, end):
        yield


@contextlib.contextmanager
def _alarm(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Acts once after some seconds, unless left before; an alarm around it rings in its time."""
    began = time.monotonic()

    def again() -> None:
        signal.signal(signal.SIGALRM, before)
        left = outer - (time.monotonic() - began)
        signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3) if outer else 0)

    def ring(*_: Any) -> None:
        again()
        act()

    before = signal.signal(signal.SIGALRM, ring)
    outer = signal.setitimer(signal.ITIMER_REAL, seconds)[0]
    try:
        yield
    finally:
        again()


@contextlib.contextmanager
def bounded_memory(size: int) -> Iterator[None]:
    """Lets the process take this many bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + size
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

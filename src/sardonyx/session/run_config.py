"""From SessionOptions and RunOptions to how runs execute: threads, memory, outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import sardonyx._native as native
from sardonyx.errors import InvalidArgument
from sardonyx.ort.config_keys import Keys
from sardonyx.ort.options import RunOptions, SessionOptions, byte_count, choice, flag, threads_of
from sardonyx.program.limit import LIMIT
from sardonyx.program.native import RunSettings
from sardonyx.session.block_pools import run_limit_bytes

_MAX_SPIN_US: Final = 1_000_000
# Keys of RunOptions.
_GRAPH_ID: Final = "gpu_graph_id"
_OUTPUTS: Final = "sardonyx.outputs"


def run_settings(options: SessionOptions) -> RunSettings:
    """Return the settings of the session's runs.

    Thread affinities take effect here, for the process: all sessions share the worker threads.
    """
    entries = options._entries
    affinities = entries.get(Keys.THREAD_AFFINITIES)
    if affinities:
        native.set_affinities(_cpu_sets(affinities))
    shares = flag(options, Keys.SHARE_BLOCK_POOL)
    return RunSettings(
        min(max(0, threads_of(options)), native.max_threads),
        flag(options, Keys.ALLOW_SPINNING, "1"),
        flag(options, Keys.GROW_IN_PLACE, "1"),
        caching=_caching(options),
        shares_memory=shares,
        limit_bytes=run_limit_bytes(byte_count(LIMIT, entries.get(LIMIT, "0")), shares),
        flushes_denormals=flag(options, Keys.FLUSH_DENORMALS),
        spin_us=_spin_us(entries.get(Keys.SPIN_US)),
        stops_spinning=flag(options, Keys.STOP_SPINNING),
    )


def _caching(options: SessionOptions) -> native.Caching:
    if not options.enable_cpu_mem_arena:
        return native.Caching.NONE
    return native.Caching.PAGES if flag(options, Keys.CACHE_PAGES) else native.Caching.BLOCKS


def _spin_us(text: str | None) -> int:
    if text is None:
        return RunSettings().spin_us
    if not text.isdecimal() or int(text) > _MAX_SPIN_US:
        raise InvalidArgument(
            f"{Keys.SPIN_US} must be a number of microseconds up to {_MAX_SPIN_US}, got {text!r}"
        )
    return int(text)


def _cpu_sets(text: str) -> list[list[int]]:
    """Return CPU numbers from 0 for each worker; in onnxruntime's "1,2;3-4" they begin at 1."""
    sets = []
    for worker in text.split(";"):
        cpus: list[int] = []
        for interval in worker.split(","):
            first, _, last = interval.strip().partition("-")
            if not first.isdigit() or not (last or first).isdigit() or int(first) < 1:
                raise InvalidArgument(
                    f"{Keys.THREAD_AFFINITIES} must list CPUs from 1 for each worker, as in "
                    f"1,2;3-4, got {text!r}"
                )
            cpus.extend(range(int(first) - 1, int(last or first)))
        sets.append(cpus)
    return sets


@contextlib.contextmanager
def flushing_denormals(flushes: bool) -> Iterator[None]:
    """Treat denormal numbers as zero on this thread within the block, if `flushes`."""
    if not flushes:
        yield
        return
    before = native.flush_denormals(True)
    try:
        yield
    finally:
        native.flush_denormals(before)


def graph_id(options: RunOptions) -> int:
    """Return the id of the CUDA graph that a run records or replays; -1: none."""
    text = options._entries.get(_GRAPH_ID, "0")
    if not text.removeprefix("-").isdecimal():
        raise InvalidArgument(f"{_GRAPH_ID} must be a number, got {text!r}")
    return int(text)


def returns_tensors(options: RunOptions) -> bool:
    """Return whether a run returns torch tensors instead of arrays."""
    return bool(choice(options, _OUTPUTS, "numpy", {"numpy": False, "device": True}))

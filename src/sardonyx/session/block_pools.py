"""Pools of memory for arenas and outputs: one for each program, or one for the process."""

from __future__ import annotations

import re
from typing import Final
from weakref import ref

from sardonyx._native import BlockPool
from sardonyx.base.locks import Lock
from sardonyx.errors import InvalidArgument
from sardonyx.ort.allocators import shared_limit_bytes
from sardonyx.ort.options import RunOptions
from sardonyx.program.native import NO_LIMIT, RunSettings

SHRINK: Final = "memory.enable_memory_arena_shrinkage"
_DEVICES: Final = ("cpu", "gpu")
_LOCK: Final = Lock()
_shared: ref[BlockPool] | None = None


def pool_for(settings: RunSettings) -> BlockPool:
    """A pool for a new program: its own, or that of all sessions that share one."""
    if not settings.shares or not settings.keeps:
        return BlockPool(settings.keeps)
    global _shared
    with _LOCK:
        pool = None if _shared is None else _shared()
        if pool is None:
            pool = BlockPool(True)
            _shared = ref(pool)
        return pool


def limit_of(own: int, shares: bool) -> int:
    """The bound of a session's runs: its own or, where it shares, the one for all; 0 is none."""
    bounds = [b for b in (own, shared_limit_bytes() if shares else 0) if b]
    return min((*bounds, NO_LIMIT))


def wants_shrinking(options: RunOptions, settings: RunSettings) -> bool:
    """Whether kept memory is to be given back after a run; a list of devices says so."""
    text = options._entries.get(SHRINK, "")
    devices = [_device(pair) for pair in text.split(";") if pair]
    if not devices:
        return False
    if ("cpu", 0) not in devices or not settings.keeps:
        why = "has no cpu:0" if settings.keeps else "asks for an arena that is switched off"
        raise InvalidArgument(
            f"{SHRINK} is {text!r}, which {why}",
            hint="name cpu:0, the only device with an arena"
            if settings.keeps
            else "leave the entry out: with enable_cpu_mem_arena off nothing is kept",
        )
    return True


def _device(pair: str) -> tuple[str, int]:
    name, _, number = pair.partition(":")
    if name not in _DEVICES or not re.fullmatch(r"(-?\d+)?", number):
        raise InvalidArgument(
            f"{SHRINK} names the device {pair!r}",
            hint='write devices as name and number, joined by semicolons, as in "cpu:0;gpu:0"',
        )
    return name, int(number or 0)

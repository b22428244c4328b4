"""Block pools for arenas and outputs: one per program, or one shared by the process.

A session with `session.use_env_allocators` uses a shared pool, of which there is one for each kind
of caching. `_LOCK` guards their creation; a pool itself is thread-safe native code and lives as
long as any session refers to it.
"""

from __future__ import annotations

import re
from typing import Final
from weakref import ref

from sardonyx._native import BlockPool, Caching
from sardonyx.base.locks import Lock
from sardonyx.errors import InvalidArgument
from sardonyx.ort.options import RunOptions
from sardonyx.program.native import NO_LIMIT, RunSettings

SHRINK: Final = "memory.enable_memory_arena_shrinkage"
_DEVICES: Final = ("cpu", "gpu")
_LOCK: Final = Lock()
_SHARED: Final[dict[Caching, ref[BlockPool]]] = {}


def pool_for(settings: RunSettings) -> BlockPool:
    """Return the block pool of a new program: its own, or the one shared by sessions."""
    caching = settings.caching
    if not settings.shares_memory or caching is Caching.NONE:
        return BlockPool(caching)
    with _LOCK:
        pool = _SHARED[caching]() if caching in _SHARED else None
        if pool is None:
            pool = BlockPool(caching)
            _SHARED[caching] = ref(pool)
        return pool


def run_limit_bytes(own: int, shares: bool) -> int:
    """Return the smaller of a session's own limit and the shared pool's; 0 means no limit."""
    limits = [own]
    if shares:
        from sardonyx.ort.allocators import shared_limit_bytes  # few sessions share a pool

        limits.append(shared_limit_bytes())
    return min((*filter(None, limits), NO_LIMIT))


def shrinks_arena(options: RunOptions, settings: RunSettings) -> bool:
    """Return whether the pool frees its cached blocks after the run.

    The config entry lists the devices to shrink, of which only cpu:0 has an arena.
    """
    text = options._entries.get(SHRINK, "")
    devices = [_device(pair) for pair in text.split(";") if pair]
    if not devices:
        return False
    if settings.caching is Caching.NONE:
        hint = "remove the entry: with enable_cpu_mem_arena off no memory is cached"
        raise InvalidArgument(f"{SHRINK} is {text!r}, but the arena is disabled", hint=hint)
    if ("cpu", 0) not in devices:
        hint = "name cpu:0, the only device with an arena"
        raise InvalidArgument(f"{SHRINK} is {text!r}, which does not name cpu:0", hint=hint)
    return True


def _device(pair: str) -> tuple[str, int]:
    """Parse one "name:number" pair."""
    name, _, number = pair.partition(":")
    if name not in _DEVICES or not re.fullmatch(r"(-?\d+)?", number):
        raise InvalidArgument(
            f"{SHRINK} names the device {pair!r}",
            hint='write devices as name and number, joined by semicolons, as in "cpu:0;gpu:0"',
        )
    return name, int(number or 0)

"""MurmurHash3 of com.microsoft: a 32-bit hash of each string, or of each number's bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F32, F64, I32, I64, STRING, U32, U64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op
from sardonyx.ops.arrays import Array

_HASHED: Final = frozenset((U32, I32, U64, I64, F32, F64, STRING))
_MASK: Final = 0xFFFFFFFF

murmur: Final = contrib_op(
    "MurmurHash3",
    "X:T1",
    "Y:T2",
    attrs={"positive": 1, "seed": 0},
    types={"T1": _HASHED, "T2": frozenset((U32, I32))},
    unranked=True,
)


@murmur.infer
def _(g: Scope, x: Fact, *, positive: int, seed: int) -> Fact:
    if positive not in (0, 1):
        raise InvalidGraph(f"positive must be 0 or 1, got {positive}")
    return Fact(U32 if positive else I32, x.shape)


@murmur.reference
def _(x: Array, *, positive: int, seed: int) -> Array:
    if x.dtype == object:
        hashes = [_hash(s.encode(), seed & _MASK) for s in x.reshape(-1).tolist()]
    else:
        rows = np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8)
        hashes = [_hash(row.tobytes(), seed & _MASK) for row in rows]
    hashed = np.array(hashes, np.uint32).reshape(x.shape)
    return hashed if positive else hashed.view(np.int32)


def _hash(data: bytes, seed: int) -> int:
    """MurmurHash3_x86_32."""
    h, aligned = seed, len(data) // 4 * 4
    for at in range(0, aligned, 4):
        h ^= _scramble(int.from_bytes(data[at : at + 4], "little"))
        h = (_rotate_left(h, 13) * 5 + 0xE6546B64) & _MASK
    # The tail of up to 3 bytes; an empty one scrambles to 0.
    h ^= _scramble(int.from_bytes(data[aligned:], "little"))
    h ^= len(data) & _MASK
    # The finalizer fmix32: every input bit affects every output bit.
    h = ((h ^ h >> 16) * 0x85EBCA6B) & _MASK
    h = ((h ^ h >> 13) * 0xC2B2AE35) & _MASK
    return h ^ h >> 16


def _rotate_left(x: int, by: int) -> int:
    return (x << by | x >> (32 - by)) & _MASK


def _scramble(block: int) -> int:
    return (_rotate_left(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593) & _MASK


OPS: Final[tuple[Any, ...]] = (murmur,)

"""How GroupQueryAttention keeps keys and values: as they are, in few bits, or only a window."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import I8, U8, DType, by_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.attention.heads import same_dims

F8: Final = by_name("f8e4m3fn")
QUANTIZED: Final = frozenset((I8, U8, F8))
_GRAINS: Final = (b"NONE", b"PER_TENSOR", b"PER_CHANNEL")


@frozen
class Codec:
    """Numbers of a cache: floats, or what stands for them times a scale."""

    bits: int  # 0 for floats
    dtype: DType

    def width(self, head: Size) -> Size:
        """How many elements a head takes."""
        return (head + 1) // 2 if self.bits == 4 else head

    def encode(self, x: Array, scale: Array | None) -> Array:
        """[batch, heads, rows, head] as the cache has it."""
        if not self.bits or scale is None:
            return np.asarray(x.astype(self.dtype.np))
        with np.errstate(all="ignore"):
            scaled = wide(x) / _fitted(scale, x.shape)
        if self.dtype is F8:
            return np.asarray(np.clip(scaled, -448, 448).astype(self.dtype.np))
        if self.bits == 8:
            return np.asarray(np.clip(np.rint(scaled), -128, 127).astype(np.int8))
        fields = np.clip(np.rint(scaled), -8, 7).astype(np.int8) + 8
        pairs = np.pad(fields, ((0, 0), (0, 0), (0, 0), (0, x.shape[3] % 2))).astype(np.uint8)
        return np.asarray(pairs[..., ::2] | (pairs[..., 1::2] << 4))

    def decode(self, cache: Array, scale: Array | None, head: int) -> Array:
        """Rows of a cache as float32."""
        if not self.bits or scale is None:
            return wide(cache)
        numbers = cache.astype(np.float32)
        if self.bits == 4:
            pairs = np.stack((cache & 15, cache >> 4), axis=-1).astype(np.float32) - 8
            numbers = pairs.reshape(*cache.shape[:3], -1)[..., :head]
        return np.asarray(numbers * _fitted(scale, numbers.shape))


def _fitted(scale: Array, shape: tuple[int, ...]) -> Array:
    """One scale for all, or one for each feature of each head."""
    if scale.size == 1:
        return scale.reshape(1, 1, 1, 1)
    return scale.reshape(1, shape[1], 1, shape[3])


def codec_of(attrs: dict[str, Any], query: DType, past: DType | None) -> Codec:
    """How a node's attributes say that its cache is kept."""
    grains = attrs["k_quant_type"], attrs["v_quant_type"]
    for grain in grains:
        if grain not in _GRAINS:
            known = ", ".join(g.decode() for g in _GRAINS)
            raise InvalidGraph(f"a quant_type {grain!r} is none of {known}")
    if grains == (b"NONE", b"NONE"):
        return Codec(0, query)
    if b"NONE" in grains:
        raise InvalidGraph("k_quant_type and v_quant_type: only one of them is NONE")
    bits = attrs["kv_cache_bit_width"] or 8
    if bits not in (4, 8):
        raise InvalidGraph(f"kv_cache_bit_width is {bits}, and must be 4 or 8")
    dtype = U8 if bits == 4 else F8 if past is F8 else I8
    if past not in (None, dtype):
        raise InvalidGraph(f"a cache of {bits} bits is of {dtype}, and the node's is of {past}")
    return Codec(bits, dtype)


def check_scale(g: Scope, scale: Fact | None, grain: bytes, sizes: tuple[Size, Size]) -> None:
    """One number, or one for each of (heads, features)."""
    if grain == b"NONE":
        return
    if scale is None:
        raise InvalidGraph("a quantized cache needs k_scale and v_scale")
    heads, head = sizes
    if grain == b"PER_TENSOR":
        same_dims(g, scale.dims, (1,) * scale.rank, "a scale of a whole tensor")
    else:
        wanted = (heads, head) if scale.rank == 2 else (1, heads, 1, head)
        same_dims(g, scale.dims, wanted, "a scale of each feature")


@frozen
class Window:
    """A cache that holds only the latest keys: rows from 0 on, the oldest first."""

    capacity: int
    width: int  # of what a row sees

    def resident(self, total: int) -> int:
        """How many of so many keys are there."""
        if total <= self.capacity:
            return total
        step = self.capacity - self.width + 1
        return total - step * -(-(total - self.capacity) // step)


def check_window(capacity: int, width: int) -> None:
    """A cache must hold what a row sees."""
    if capacity < width:
        raise InvalidArgument(
            f"a cache of {capacity} rows cannot hold a window of {width} (local_window_size)"
        )

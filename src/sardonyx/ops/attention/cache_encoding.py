"""Storage of GroupQueryAttention's cache: floats, quantized (int8, float8, int4), or windowed."""

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
from sardonyx.ops.inference import check_choice

F8: Final = by_name("f8e4m3fn")
QUANTIZED: Final = frozenset((I8, U8, F8))
_GRANULARITIES: Final = (b"NONE", b"PER_TENSOR", b"PER_CHANNEL")


@frozen
class Codec:
    """The element encoding of a cache: floats, or quantized codes times a scale."""

    bits: int  # 0 for floats
    dtype: DType

    def width(self, head: Size) -> Size:
        """Return the stored elements per head: two 4-bit codes share a byte."""
        return (head + 1) // 2 if self.bits == 4 else head

    def encode(self, x: Array, scale: Array | None) -> Array:
        """Return [batch, heads, rows, head] in the cache's encoding."""
        if not self.bits or scale is None:
            return np.asarray(x.astype(self.dtype.np))
        with np.errstate(all="ignore"):
            scaled = wide(x) / _broadcast_scale(scale, x.shape)
        if self.dtype is F8:
            # 448 is the largest finite float8 e4m3fn; a cast would give NaN above it.
            return np.asarray(np.clip(scaled, -448, 448).astype(self.dtype.np))
        if self.bits == 8:
            return np.asarray(np.clip(np.rint(scaled), -128, 127).astype(np.int8))
        # Codes are stored with an offset of 8, the even feature in the low four bits.
        codes = np.clip(np.rint(scaled), -8, 7).astype(np.int8) + 8
        pairs = np.pad(codes, ((0, 0), (0, 0), (0, 0), (0, x.shape[3] % 2))).astype(np.uint8)
        return np.asarray(pairs[..., ::2] | (pairs[..., 1::2] << 4))

    def decode(self, cache: Array, scale: Array | None, head: int) -> Array:
        """Return rows of a cache as float32."""
        if not self.bits or scale is None:
            return wide(cache)
        numbers = cache.astype(np.float32)
        if self.bits == 4:
            pairs = np.stack((cache & 15, cache >> 4), axis=-1).astype(np.float32) - 8
            numbers = pairs.reshape(*cache.shape[:3], -1)[..., :head]
        return np.asarray(numbers * _broadcast_scale(scale, numbers.shape))


def _broadcast_scale(scale: Array, shape: tuple[int, ...]) -> Array:
    """Return the scale, per tensor or per channel, in a shape that broadcasts to the cache."""
    if scale.size == 1:
        return scale.reshape(1, 1, 1, 1)
    return scale.reshape(1, shape[1], 1, shape[3])


def codec_of(attrs: dict[str, Any], query: DType, past: DType | None) -> Codec:
    """Return the cache encoding that a node's attributes select."""
    for name in ("k_quant_type", "v_quant_type"):
        check_choice(name, attrs[name], _GRANULARITIES, InvalidGraph)
    granularities = attrs["k_quant_type"], attrs["v_quant_type"]
    if granularities == (b"NONE", b"NONE"):
        return Codec(0, query)
    if b"NONE" in granularities:
        raise InvalidGraph("k_quant_type and v_quant_type: only one of them is NONE")
    bits = attrs["kv_cache_bit_width"] or 8
    if bits not in (4, 8):
        raise InvalidGraph(f"kv_cache_bit_width must be 4 or 8, got {bits}")
    dtype = U8 if bits == 4 else F8 if past is F8 else I8
    if past not in (None, dtype):
        raise InvalidGraph(f"a cache of {bits} bits has the type {dtype}, and past_key has {past}")
    return Codec(bits, dtype)


def check_scale(g: Scope, scale: Fact | None, granularity: bytes, sizes: tuple[Size, Size]) -> None:
    """Check the shape of a cache scale: one number, or one per (head, feature)."""
    if granularity == b"NONE":
        return
    if scale is None:
        raise InvalidGraph("a quantized cache needs k_scale and v_scale")
    heads, head = sizes
    if granularity == b"PER_TENSOR":
        same_dims(g, scale.dims, (1,) * scale.rank, "a per-tensor scale")
    else:
        expected = {1: (heads * head,), 2: (heads, head)}.get(scale.rank, (1, heads, 1, head))
        same_dims(g, scale.dims, expected, "a per-channel scale")


@frozen
class WindowedCache:
    """A cache that holds only the latest keys: rows from 0 on, the oldest first."""

    capacity: int
    width: int  # keys that a row sees

    def n_cached_keys(self, total: int) -> int:
        """Return how many of `total` keys the cache holds.

        A full cache drops a whole step of keys at once, so that most tokens are plain appends.
        """
        if total <= self.capacity:
            return total
        # The largest number of keys that can be dropped while a whole window stays cached.
        step = self.capacity - self.width + 1
        return total - step * -(-(total - self.capacity) // step)


def check_window_capacity(capacity: int, width: int) -> None:
    """Raise unless the cache can hold a window."""
    if capacity < width:
        raise InvalidArgument(
            f"a cache of {capacity} rows cannot hold a window of {width}: with "
            "sliding_window_cache, it has local_window_size rows or more"
        )

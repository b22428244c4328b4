"""Rotary embeddings: pairs of features turned by an angle that depends on the position."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import BF16, F16, F32, I64
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.attention.rotary_contrib import heads_of, streams_of
from sardonyx.providers.torch.attention.core import pack, unpack
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable
from sardonyx.providers.torch.precision import wide

_TYPES: Final = frozenset((F32, F16, BF16, I64))


def taken(tables: tuple[Tensor, Tensor], places: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of tables of cosines and sines in float32; a place outside reads the nearest."""
    rows, pairs = tables[0].shape
    held = places.reshape(-1).clamp(0, max(rows - 1, 0))
    cos, sin = (wide(t.index_select(0, held)).view(*places.shape, pairs) for t in tables)
    return cos, sin


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: int) -> Tensor:
    """Pairs of the first features of x, turned by angles that broadcast to half of them."""
    half = cos.shape[-1]
    even, odd = slice(0, half), slice(half, 2 * half)
    if interleaved:
        even, odd = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    full = wide(x)
    first, second = full[..., even], full[..., odd]
    y = torch.empty_like(full) if x.shape[-1] == 2 * half else full.clone()
    torch.mul(first, cos, out=y[..., even]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=y[..., odd]).addcmul_(first, sin)
    return y.to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, interleaved: int) -> Tensor:
    """Pairs of features of [batch, heads, rows, head], turned by the angles of their places."""
    if x.numel() and cos.numel() and usable(x.device):
        from sardonyx.providers.torch.kernels import rotary as kernel

        given = (t.contiguous() for t in (cos, sin, places.expand(x.shape[0], -1)))
        y = kernel.rotary(x.transpose(1, 2), *given, is_interleaved=bool(interleaved))
        return y.transpose(1, 2)
    c, s = taken((cos, sin), places)
    return turned(x, c[:, None], s[:, None], interleaved)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, ids: Tensor | None = None, **attrs: Any) -> Tensor:
    """The standard op: angles of each token, or tables and positions."""
    tokens = x if x.dim() == 4 else unpack(x, attrs["num_heads"])
    if ids is None:
        y = turned(tokens, wide(cos)[:, None], wide(sin)[:, None], attrs["interleaved"])
    else:
        y = rotated(tokens, cos, sin, ids, attrs["interleaved"])
    return y if x.dim() == 4 else pack(y)


def microsoft_rotary(x: Tensor, ids: Tensor, cos: Tensor, sin: Tensor, **attrs: Any) -> Tensor:
    """Positions of all tokens, or of the first of each text."""
    if not x.numel():
        return x
    tokens = _heads(x, cos, attrs)
    places = ids
    if ids.dim() == 1:
        rows = torch.arange(tokens.shape[2], device=x.device)
        places = (ids + rows).expand(x.shape[0], -1)
    y = rotated(tokens, cos, sin, places, attrs["interleaved"])
    return y if x.dim() == 4 else pack(y)


def _heads(x: Tensor, cos: Tensor, attrs: dict[str, Any]) -> Tensor:
    """[batch, heads, rows, head], whichever way heads are laid out."""
    if x.dim() == 4:
        return x
    heads = heads_of(x.shape[2], cos.shape[1], attrs)
    assert isinstance(heads, int)
    return unpack(x, heads)


def multi_rotary(x: Tensor, ids: Tensor, cos: Tensor, sin: Tensor, **attrs: Any) -> Tensor:
    """Each pair of features turns by one of a token's three positions."""
    if not x.numel():
        return x
    tokens = _heads(x, cos, attrs)
    c, s = (_mixed(angles, attrs)[:, None] for angles in taken((cos, sin), ids))
    y = turned(tokens, c, s, attrs["interleaved"])
    return y if x.dim() == 4 else pack(y)


def _mixed(angles: Tensor, attrs: dict[str, Any]) -> Tensor:
    """From [3, batch, rows, pairs], of each pair those of its stream."""
    streams = streams_of(attrs).tolist()
    if attrs["mrope_layout"] == 0:
        parts = torch.split_with_sizes(angles, list(attrs["mrope_section"]), -1)
        return torch.cat([part[stream] for stream, part in enumerate(parts)], -1)
    return torch.stack([angles[stream, ..., i] for i, stream in enumerate(streams)], -1)


KERNELS: Final[TorchKernels] = {
    (ONNX, "RotaryEmbedding"): TorchKernel(rotary, _TYPES),
    (MICROSOFT, "RotaryEmbedding"): TorchKernel(microsoft_rotary, _TYPES),
    (MICROSOFT, "MRotaryEmbedding"): TorchKernel(multi_rotary, _TYPES),
}

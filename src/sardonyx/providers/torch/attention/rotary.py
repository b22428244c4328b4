"""Rotary position embedding (RoPE): pairs of features rotated by position-dependent angles."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import BF16, F16, F32, I64
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.attention.rotary import packed_heads
from sardonyx.providers.torch.attention.core import pack, unpack
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable

_TYPES: Final = frozenset((F32, F16, BF16, I64))


def gather_angles(tables: tuple[Tensor, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 cosines and sines of positions, which are clamped to the tables."""
    rows, pairs = tables[0].shape
    # Positions outside would abort the CUDA context.
    clamped = positions.reshape(-1).clamp(0, max(rows - 1, 0))
    cos, sin = (wide(t.index_select(0, clamped)).view(*positions.shape, pairs) for t in tables)
    return cos, sin


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: int) -> Tensor:
    """Return x with the first 2 * cos.shape[-1] features rotated in pairs, in float32."""
    # Pairs are (i, i + half), or (2i, 2i + 1) if interleaved.
    half = cos.shape[-1]
    even, odd = slice(0, half), slice(half, 2 * half)
    if interleaved:
        even, odd = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    full = wide(x)
    first, second = full[..., even], full[..., odd]
    # x cos - y sin and y cos + x sin, written to the halves or interleaved features in place.
    y = torch.empty_like(full) if x.shape[-1] == 2 * half else full.clone()
    torch.mul(first, cos, out=y[..., even]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=y[..., odd]).addcmul_(first, sin)
    return y.to(x.dtype)


def rotate_at(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: int) -> Tensor:
    """Return [batch, heads, rows, head], rotated by the angles of positions [batch, rows]."""
    if x.numel() and cos.numel() and usable(x.device):
        from sardonyx.providers.torch.kernels import rotary as kernel

        tables = (t.contiguous() for t in (cos, sin, positions.expand(x.shape[0], -1)))
        y = kernel.rotary(x.transpose(1, 2), *tables, is_interleaved=bool(interleaved))
        return y.transpose(1, 2)
    c, s = gather_angles((cos, sin), positions)
    return rotate(x, c[:, None], s[:, None], interleaved)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, ids: Tensor | None = None, **attrs: Any) -> Tensor:
    """RotaryEmbedding of ONNX: angles per token, or tables with position ids."""
    tokens = x if x.dim() == 4 else unpack(x, attrs["num_heads"])
    if ids is None:
        y = rotate(tokens, wide(cos)[:, None], wide(sin)[:, None], attrs["interleaved"])
    else:
        y = rotate_at(tokens, cos, sin, ids, attrs["interleaved"])
    return y if x.dim() == 4 else pack(y)


def microsoft_rotary(x: Tensor, ids: Tensor, cos: Tensor, sin: Tensor, **attrs: Any) -> Tensor:
    """RotaryEmbedding of com.microsoft: positions of all tokens, or of the first token only."""
    if not x.numel():
        return x
    tokens = _heads(x, cos, attrs)
    positions = ids
    if ids.dim() == 1:
        rows = torch.arange(tokens.shape[2], device=x.device)
        positions = (ids + rows).expand(x.shape[0], -1)
    y = rotate_at(tokens, cos, sin, positions, attrs["interleaved"])
    return y if x.dim() == 4 else pack(y)


def _heads(x: Tensor, cos: Tensor, attrs: dict[str, Any]) -> Tensor:
    """Return x as [batch, heads, rows, head]."""
    if x.dim() == 4:
        return x
    heads = packed_heads(x.shape[2], cos.shape[1], attrs)
    assert isinstance(heads, int)
    return unpack(x, heads)


KERNELS: Final[TorchKernels] = {
    (ONNX, "RotaryEmbedding"): TorchKernel(rotary, _TYPES),
    (MICROSOFT, "RotaryEmbedding"): TorchKernel(microsoft_rotary, _TYPES),
}

"""Attention of com.microsoft, which projects its input to query, key and value."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import BF16, F16, F32, I8, I32, U8
from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.arrays import filled, one_int
from sardonyx.ops.attention.decoder import projected_attrs
from sardonyx.ops.attention.projected import ProjectedInputs, qkv_widths
from sardonyx.ops.attention.quantized import projected_attrs as quantized_attrs
from sardonyx.providers.torch.attention.core import pack, unpack
from sardonyx.providers.torch.attention.multi_head import attend, extend_caches, mask_to_bias
from sardonyx.providers.torch.attention.rotary import rotate
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.nbits import matmul_bias
from sardonyx.providers.torch.quantize import exact_matmul

_TYPES: Final = frozenset((F32, F16, BF16, I32))


def projected(*inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """Return the output, and the present keys and values."""
    x = ProjectedInputs(*filled(inputs, 7))
    return _attend_projected(x, matmul_bias(x.x, x.weights, x.bias), attrs)


def _attend_projected(x: ProjectedInputs, qkv: Tensor, attrs: dict[str, Any]) -> tuple[Tensor, ...]:
    heads = attrs["num_heads"]
    widths: Any = qkv_widths(qkv.shape[2], attrs)
    q, k, v = (unpack(t, heads) for t in torch.split_with_sizes(qkv, widths, 2))
    # Only a shared buffer has a past length; else the past cache has exactly its rows.
    length = x.past_length if attrs["past_present_share_buffer"] else None
    if attrs["do_rotary"]:
        first = 0 if x.past is None else x.past.shape[3]
        first = first if length is None else one_int(length, "past_sequence_length")
        q, k = (_rotate(t, first, attrs["rotary_embedding_dim"]) for t in (q, k))
    past, caches = extend_caches((None, None) if x.past is None else x.past, (k, v), length)
    k, v = (c[:, :, : past + q.shape[2]] for c in caches)
    mask = None
    if x.mask is not None:
        mask = _mask(x.mask, (x.x.shape[0], past, q.shape[2]), attrs["mask_filter_value"])
    y, _ = attend((q, k, v), mask, x.attention_bias, past, attrs)
    # Keys and values of different sizes have no common cache: the output is zeros, unused.
    is_same = k.shape == v.shape
    return pack(y), torch.stack(caches) if is_same else k.new_zeros((2, *k.shape))


def _rotate(x: Tensor, past: int, width: int) -> Tensor:
    """Return [batch, heads, rows, head] rotated (RoPE, base 10000) by positions from `past` on."""
    # Angles in float64: positions times frequencies lose bits in float32.
    half = (width or x.shape[3]) // 2
    pairs = torch.arange(half, dtype=torch.float64, device=x.device)
    frequencies = 10000.0 ** (-pairs / max(half, 1))
    angles = torch.arange(past, past + x.shape[2], device=x.device)[:, None] * frequencies
    return rotate(x, angles.cos().float(), angles.sin().float(), 0)


def _mask(mask: Tensor, sizes: tuple[int, int, int], low: float | None) -> Tensor:
    """Return mask_index as a bias of the scores [batch, heads, rows, keys]."""
    batch, past, rows = sizes
    keys = past + rows
    # Rank 1: lengths, perhaps with starts or offsets; 4: [batch, 1, longest, longest].
    if mask.dim() == 1:
        if mask.shape[0] not in (batch, 2 * batch, 3 * batch + 2):
            raise InvalidArgument(f"mask_index has {mask.shape[0]} numbers for a batch of {batch}")
        positions = torch.arange(keys, device=mask.device)
        seen = positions < mask[:batch, None]
        if mask.shape[0] == 2 * batch:
            seen = seen & (positions >= mask[batch:, None])
    elif mask.dim() == 4:
        seen = mask[:, 0, past:keys, :keys] > 0
    else:
        seen = mask > 0
    shape = (seen.shape[0], 1, 1 if seen.dim() == 2 else seen.shape[1], keys)
    return mask_to_bias(seen.reshape(shape), low)


def quantized(*inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """As `projected`, with 8-bit quantized input and weights."""
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = filled(inputs, 9)
    # The projection is exact in integers; attention is computed in the bias's type.
    zero = None if x_zero is None else x_zero.reshape(())
    total = exact_matmul(x, w, zero, w_zero).float()
    qkv = total * (wide(x_scale).reshape(()) * wide(w_scale)) + wide(bias)
    float_inputs = ProjectedInputs(x, w, bias, mask, past, None, None)
    return _attend_projected(float_inputs, qkv.to(bias.dtype), quantized_attrs(attrs))


def masked_self(*inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """Return the attention of one new row."""
    length = inputs[6] if attrs["past_present_share_buffer"] else None
    return projected(*inputs[:6], length, **projected_attrs(attrs))


def _shares_cache(node: Node) -> str:
    if node.attrs["past_present_share_buffer"]:
        return "the op shares its cache without a past length: set past_present_share_buffer to 0"
    return ""


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "Attention"): TorchKernel(projected, _TYPES, host=(6,)),
    (MICROSOFT, "QAttention"): TorchKernel(quantized, _TYPES | {I8, U8}, refuses=_shares_cache),
    (MICROSOFT, "DecoderMaskedSelfAttention"): TorchKernel(masked_self, _TYPES, host=(6, 7, 8)),
}

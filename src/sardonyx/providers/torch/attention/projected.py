"""Attention of com.microsoft: the input is projected to query, key and value first."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import BF16, F16, F32, I8, I32, U8
from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.arrays import one_int
from sardonyx.ops.attention.decoder import projected_attrs
from sardonyx.ops.attention.projected import Inputs, widths_of
from sardonyx.ops.attention.quantized import projected_attrs as quantized_attrs
from sardonyx.ops.recurrent.standard import filled
from sardonyx.providers.torch.attention.core import INF, pack, unpack
from sardonyx.providers.torch.attention.multi_head import appended, attend, shut_out
from sardonyx.providers.torch.attention.rotary import turned
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.nbits.blockwise import weighed
from sardonyx.providers.torch.precision import wide
from sardonyx.providers.torch.quantize.matmul_conv import exact_matmul

_TYPES: Final = frozenset((F32, F16, BF16, I32))


def projected(*inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """The output, and keys and values with those of the past."""
    x = Inputs(*filled(inputs, 7))
    return _attended(x, weighed(x.x, x.weights, x.bias), attrs)


def _attended(x: Inputs, all_three: Tensor, attrs: dict[str, Any]) -> tuple[Tensor, ...]:
    heads = attrs["num_heads"]
    widths: Any = widths_of(all_three.shape[2], attrs)
    q, k, v = (unpack(part, heads) for part in torch.split_with_sizes(all_three, widths, 2))
    past = 0
    if attrs["past_present_share_buffer"]:
        past = one_int(x.past_length, "past_sequence_length")
    elif x.past is not None:
        past = x.past.shape[3]
    if attrs["do_rotary"]:
        q, k = (_turned(part, past, attrs["rotary_embedding_dim"]) for part in (q, k))
    caches = [k, v]
    if attrs["past_present_share_buffer"]:
        caches = [appended(old, new, past) for old, new in zip(x.past, (k, v), strict=True)]
    elif x.past is not None:
        caches = [torch.cat(pair, 2) for pair in zip(x.past, (k, v), strict=True)]
    k, v = (c[:, :, : past + q.shape[2]] for c in caches)
    low = attrs["mask_filter_value"]
    mask = None if x.mask is None else _mask(x.mask, (x.x.shape[0], past, q.shape[2]), low)
    if x.added is not None:
        mask = wide(x.added) if mask is None else mask + wide(x.added)
    y = attend((q, k, v), mask, past, attrs, x.added is not None or low == -INF)
    same = k.shape == v.shape
    return pack(y), torch.stack(caches) if same else k.new_zeros((2, *k.shape))


def _turned(x: Tensor, past: int, width: int) -> Tensor:
    """Features of [batch, heads, rows, head] turned by the angles of their places."""
    half = (width or x.shape[3]) // 2
    steps = torch.arange(half, dtype=torch.float64, device=x.device)
    speeds = 10000.0 ** (-steps / max(half, 1))
    angles = torch.arange(past, past + x.shape[2], device=x.device)[:, None] * speeds
    return turned(x, angles.cos().float(), angles.sin().float(), 0)


def _mask(mask: Tensor, sizes: tuple[int, int, int], low: float | None) -> Tensor:
    """What a mask adds to the scores [batch, heads, rows, keys]."""
    batch, past, rows = sizes
    keys = past + rows
    if mask.dim() == 1:
        if mask.shape[0] not in (batch, 2 * batch, 3 * batch + 2):
            raise InvalidArgument(f"mask_index has {mask.shape[0]} numbers for a batch of {batch}")
        places = torch.arange(keys, device=mask.device)
        seen = places < mask[:batch, None]
        if mask.shape[0] == 2 * batch:
            seen = seen & (places >= mask[batch:, None])
    elif mask.dim() == 4:
        seen = mask[:, 0, past:keys, :keys] > 0
    else:
        seen = mask > 0
    shape = (seen.shape[0], 1, 1 if seen.dim() == 2 else seen.shape[1], keys)
    return shut_out(seen.reshape(shape), low)


def quantized(*inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """The same with an input and weights of bytes."""
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = filled(inputs, 9)
    move = None if x_zero is None else x_zero.reshape(())
    total = exact_matmul(x, w, move, w_zero).float()
    whole = total * (wide(x_scale).reshape(()) * wide(w_scale)) + wide(bias)
    parts = Inputs(x, w, bias, mask, past, None, None)
    return _attended(parts, whole.to(bias.dtype), quantized_attrs(attrs))


def masked_self(*inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """Attention of one new row."""
    length = inputs[6] if attrs["past_present_share_buffer"] else None
    return projected(*inputs[:6], length, **projected_attrs(attrs))


def _shares_cache(node: Node) -> str:
    if node.attrs["past_present_share_buffer"]:
        return "its cache is shared without a length: set past_present_share_buffer to 0"
    return ""


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "Attention"): TorchKernel(projected, _TYPES, host=(6,)),
    (MICROSOFT, "QAttention"): TorchKernel(quantized, _TYPES | {I8, U8}, refuses=_shares_cache),
    (MICROSOFT, "DecoderMaskedSelfAttention"): TorchKernel(masked_self, _TYPES, host=(6, 7, 8)),
}

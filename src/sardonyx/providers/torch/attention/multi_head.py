"""MultiHeadAttention and DecoderMaskedMultiHeadAttention of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import BF16, F16, F32, I32
from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.arrays import filled, one_int
from sardonyx.ops.attention.decoder import DecoderInputs, multi_head_attrs
from sardonyx.ops.attention.fused import KEEP_NAN, ZERO_FULLY_MASKED
from sardonyx.ops.attention.multi_head import MASKED_SCORE, MultiHeadInputs
from sardonyx.providers.torch.attention.core import INF, attended, pack, scores_of, unpack
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels

_TYPES: Final = frozenset((F32, F16, BF16, I32))
LOWEST: Final = float(np.finfo(np.float32).min)  # the score of a key hidden by causality


def multi_head(*inputs: Any, shapes: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """Return the output, present keys and values, and the scores if the node has that output."""
    x, heads = MultiHeadInputs(*filled(inputs, 10)), attrs["num_heads"]
    q, k, v = _add_bias(x, _heads(x, heads))
    past, caches = extend_caches((x.past_key, x.past_value), (k, v), x.past_length)
    k, v = (c[:, :, : past + k.shape[2]] for c in caches)
    mask = None
    if x.padding is not None:
        mask = _padding_bias(x.padding, k.shape[2], attrs["mask_filter_value"])
    y, mask = attend((q, k, v), mask, x.attention_bias, past, attrs)
    if len(shapes) < 4:
        return pack(y), *caches
    return pack(y), *caches, _scores(q, k, mask, past, attrs)


def _heads(x: MultiHeadInputs, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value as [batch, heads, rows, head]."""
    # Rank 5 is packed QKV or KV, rank 4 a cross-attention cache, rank 3 not packed.
    if x.query.dim() == 5:
        q, k, v = x.query.permute(3, 0, 2, 1, 4)
        return q, k, v
    q = unpack(x.query, heads)
    if x.key.dim() == 5:
        k, v = x.key.permute(3, 0, 2, 1, 4)
        return q, k, v
    if x.key.dim() == 4:
        return q, x.key, x.value
    return q, unpack(x.key, heads), unpack(x.value, heads)


def _add_bias(
    x: MultiHeadInputs, qkv: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Add the projection bias; keys in cache layout have it already."""
    if x.bias is None:
        return qkv
    q, k, v = qkv
    heads, width = q.shape[1], q.shape[1] * q.shape[3]
    biases = x.bias[:width], x.bias[width : 2 * width], x.bias[2 * width :]
    q, *rest = (p + b.view(1, heads, 1, -1) for p, b in zip(qkv, biases, strict=True))
    return (q, rest[0], rest[1]) if x.key is None or x.key.dim() != 4 else (q, k, v)


def extend_caches(
    old: Sequence[Any], new: Sequence[Tensor], past_length: Any
) -> tuple[int, list[Tensor]]:
    """Return the number of past rows, and the caches with the new rows after them.

    With a past length the caches have a fixed capacity, and zeros after the new rows.
    """
    if past_length is None:
        if old[0] is None:
            return 0, list(new)
        return old[0].shape[2], [torch.cat(pair, 2) for pair in zip(old, new, strict=True)]
    past = one_int(past_length, "past_sequence_length")
    rows, capacity = new[0].shape[2], old[0].shape[2]
    if past < 0 or past + rows > capacity:
        raise InvalidArgument(f"{rows} new rows after {past} do not fit into a cache of {capacity}")
    caches = []
    for o, n in zip(old, new, strict=True):
        rest = o.new_zeros((*o.shape[:2], capacity - past - rows, o.shape[3]))
        caches.append(torch.cat((o[:, :, :past], n, rest), 2))
    return past, caches


def _padding_bias(padding: Tensor, keys: int, low: float | None) -> Tensor:
    """Return a key padding mask as a bias of the scores [batch, heads, rows, keys]."""
    # Rank 1: lengths; 2: a mask of keys; 3: of rows and keys.
    if padding.dim() == 1:
        padding = torch.arange(keys, device=padding.device) < padding[:, None]
    rows = 1 if padding.dim() == 2 else padding.shape[1]
    return mask_to_bias(padding.view(padding.shape[0], 1, rows, keys) > 0, low)


def mask_to_bias(seen: Tensor, low: float | None) -> Tensor:
    """Return 0 for visible keys, else a low number."""
    zero = torch.zeros((), device=seen.device)
    return zero.where(seen, MASKED_SCORE if low is None else low)


def attend(
    qkv: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    attention_bias: Tensor | None,
    past: int,
    attrs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Return softmax(q k^T + mask + bias) v, and the sum of mask and bias."""
    q, k, v = qkv
    # These may hide all keys of a row, whose softmax is then NaN.
    may_mask_row = attention_bias is not None or attrs["mask_filter_value"] == -INF
    if attention_bias is not None:
        mask = wide(attention_bias) if mask is None else mask + wide(attention_bias)
    is_causal, bias = bool(attrs["unidirectional"]) and q.shape[2] > 1, mask
    # torch's causal flag excludes a mask, and aligns the first row with the first key.
    if is_causal and (mask is not None or past):
        zero = torch.zeros((1,) * 4, device=q.device)
        bias, is_causal = _hide_future(zero if mask is None else mask, past, q, k), False
    y = attended(
        q, k, v, bias, scale=_scale(q, attrs), is_causal=is_causal,
        nan_rows=KEEP_NAN if may_mask_row else ZERO_FULLY_MASKED,
    )  # fmt: skip
    return y, mask


def _scale(q: Tensor, attrs: dict[str, Any]) -> float:
    return attrs["scale"] or 1 / math.sqrt(q.shape[-1] or 1)


def _hide_future(scores: Tensor, past: int, q: Tensor, k: Tensor) -> Tensor:
    """Return scores or a bias with the lowest number for keys after a row's position."""
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    return torch.where(torch.arange(k.shape[2], device=q.device) <= rows + past, scores, LOWEST)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, past: int, attrs: dict[str, Any]) -> Tensor:
    """Return the scores before the softmax."""
    scores = scores_of(q, k, _scale(q, attrs))
    if mask is not None:
        scores = scores + mask
    if attrs["unidirectional"]:
        scores = _hide_future(scores, past, q, k)
    return scores.to(q.dtype)


def decoder_masked(*inputs: Any, shapes: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """Return the attention of one new row."""
    x = DecoderInputs(*filled(inputs, 11))
    # Without a key, the query input is packed QKV.
    if x.key is None:
        x = DecoderInputs(*x.query.chunk(3, 2), *filled(inputs, 11)[3:])
    return multi_head(*x.as_multi_head(attrs), shapes=shapes, **multi_head_attrs(attrs))


def _refuses_beams(slot: int) -> Any:
    def refuses(node: Node) -> str:
        if len(node.inputs) > slot and node.inputs[slot] is not None:
            return "cache_indirection (beams that share a KV cache) has no kernel in torch"
        return ""

    return refuses


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "MultiHeadAttention"): TorchKernel(
        multi_head, _TYPES, host=(8,), sized=True, refuses=_refuses_beams(9)
    ),
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): TorchKernel(
        decoder_masked, _TYPES, host=(7, 8), sized=True, refuses=_refuses_beams(9)
    ),
}

"""MultiHeadAttention and DecoderMaskedMultiHeadAttention of com.microsoft."""

from __future__ import annotations

import math
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
from sardonyx.ops.attention.fused import STAYS, UNSEEN
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
    past = 0
    caches = [k, v]
    if x.past_length is not None:
        past = one_int(x.past_length, "past_sequence_length")
        caches = [append_to_cache(o, n, past) for o, n in ((x.past_key, k), (x.past_value, v))]
        k, v = (c[:, :, : past + k.shape[2]] for c in caches)
    elif x.past_key is not None:
        past = x.past_key.shape[2]
        caches = [torch.cat(p, 2) for p in ((x.past_key, k), (x.past_value, v))]
        k, v = caches
    low = attrs["mask_filter_value"]
    mask = None if x.padding is None else _padding_bias(x.padding, k.shape[2], low)
    if x.attention_bias is not None:
        mask = wide(x.attention_bias) if mask is None else mask + wide(x.attention_bias)
    may_blind = x.attention_bias is not None or low == -INF
    y = attend((q, k, v), mask, past, attrs, may_blind)
    if len(shapes) < 4:
        return pack(y), *caches
    return pack(y), *caches, _scores(q, k, mask, past, attrs)


def _heads(x: MultiHeadInputs, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value as [batch, heads, rows, head]."""
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


def append_to_cache(cache: Tensor, new: Tensor, past: int) -> Tensor:
    """Return a cache of the same capacity with new rows after the past ones, then zeros."""
    if past < 0 or past + new.shape[2] > cache.shape[2]:
        raise InvalidArgument(
            f"{new.shape[2]} new rows behind {past} do not fit into a cache of {cache.shape[2]}"
        )
    rest = cache.new_zeros((*cache.shape[:2], cache.shape[2] - past - new.shape[2], cache.shape[3]))
    return torch.cat((cache[:, :, :past], new, rest), 2)


def _padding_bias(padding: Tensor, keys: int, low: float | None) -> Tensor:
    """Return a key padding mask as a bias of the scores [batch, heads, rows, keys]."""
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
    past: int,
    attrs: dict[str, Any],
    may_blind: bool,
) -> Tensor:
    """Return softmax(q k^T + mask) v; `may_blind`: the mask may hide all keys of a row."""
    q, k, v = qkv
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[-1] or 1)
    is_causal = bool(attrs["unidirectional"]) and q.shape[2] > 1
    if is_causal and (mask is not None or past):
        mask = _causal_bias(mask, past, q, k)
        is_causal = False
    blind = STAYS if may_blind else UNSEEN
    return attended(q, k, v, mask, scale=scale, is_causal=is_causal, blind=blind)


def _causal_bias(mask: Tensor | None, past: int, q: Tensor, k: Tensor) -> Tensor:
    """Return the bias with keys after a row's position hidden."""
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    seen = torch.arange(k.shape[2], device=q.device) <= rows + past
    bias = torch.zeros((), device=q.device) if mask is None else mask
    return torch.where(seen, bias, LOWEST)[(None,) * (2 if mask is None else 0)]


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, past: int, attrs: dict[str, Any]) -> Tensor:
    """Return the scores before the softmax."""
    scores = scores_of(q, k, attrs["scale"] or 1 / math.sqrt(q.shape[-1] or 1))
    if mask is not None:
        scores = scores + mask
    if attrs["unidirectional"]:
        rows = torch.arange(q.shape[2], device=q.device)[:, None]
        seen = torch.arange(k.shape[2], device=q.device) <= rows + past
        scores = torch.where(seen, scores, LOWEST)
    return scores.to(q.dtype)


def decoder_masked(*inputs: Any, shapes: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """Return the attention of one new row."""
    x = DecoderInputs(*filled(inputs, 11))
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

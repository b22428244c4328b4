"""Attention in training as one custom torch op, forward and backward.

torch computes `scaled_dot_product_attention` with dropout from matmuls, softmax and dropout, and
AOTAutograd would save the results of each. Here the calls of a captured graph are replaced, before
AOTAutograd traces it, by the draw of dropout's mask, which is saved as bytes, and
`sardonyx::attention`, a torch op with a gradient, which saves the logsumexp of each row. Its
results have rows before heads, the layout of the projections around it, so that saving needs no
copy. `dynamo.aten.attention` lowers it; where it is not lowered, torch computes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from sardonyx.dynamo.recurrent import in_autocast_type

_SIGNATURE: Final = (
    "Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? keep, bool causal, float scale, "
    "float keep_scale"
)


@torch.library.custom_op(
    "sardonyx::attention", mutates_args=(), schema=f"({_SIGNATURE}) -> (Tensor, Tensor)"
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    keep: Tensor | None,
    causal: bool,
    scale: float,
    keep_scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the output, [batch, rows, heads, width], and the logsumexp of each row's scores.

    `keep` has the shape of the scores; probabilities that it keeps are multiplied by `keep_scale`.
    """
    dtype = q.dtype
    q, k, v = _in_compute_type(q, k, v)
    scores = _scores(q, k, mask, causal, scale)
    lse = scores.logsumexp(-1)
    y = _kept(_probabilities(scores, lse), keep, keep_scale) @ _repeated(v, q)
    return y.transpose(1, 2).contiguous().to(dtype), lse


def _in_compute_type(*tensors: Tensor) -> list[Tensor]:
    return [x.to(_compute_type(x)) for x in tensors]


def _repeated(x: Tensor, q: Tensor) -> Tensor:
    """Repeat the heads of keys or values for all heads of the queries."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    scores = q * scale @ _repeated(k, q).mT
    if causal:
        visible = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~visible, -math.inf)
    if mask is None:
        return scores
    is_bool = mask.dtype is torch.bool
    return scores.masked_fill(~mask, -math.inf) if is_bool else scores + mask


def _probabilities(scores: Tensor, lse: Tensor) -> Tensor:
    return torch.where((lse == -math.inf)[..., None], 0.0, (scores - lse[..., None]).exp())


def _kept(x: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
    return x if keep is None else x * keep * keep_scale


def _compute_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _rows_first(x: Tensor, width: Any) -> Tensor:
    batch, heads, rows, _ = x.shape
    return x.new_empty((batch, rows, heads, width))


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _rows_first(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=_compute_type(q))


@register_flop_formula(torch.ops.sardonyx.attention)
def _(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the cost by which a memory budget decides what is recomputed."""
    return 2 * math.prod(q[:3]) * k[2] * (q[3] + v[3])


@torch.library.custom_op(
    "sardonyx::attention_backward",
    mutates_args=(),
    schema=f"(Tensor dy, Tensor y, Tensor lse, {_SIGNATURE}) -> (Tensor, Tensor, Tensor)",
)
def attention_backward(
    dy: Tensor, y: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v, each [batch, rows, heads, width]."""
    mask, keep, causal, scale, keep_scale = rest
    dtype = q.dtype
    dy, y, q, k, v = _in_compute_type(dy.transpose(1, 2), y.transpose(1, 2), q, k, v)
    p = _probabilities(_scores(q, k, mask, causal, scale), lse)
    dp = _kept(dy @ _repeated(v, q).mT, keep, keep_scale)
    ds = p * (dp - (dy * y).sum(-1, keepdim=True)) * scale
    shared = ds.mT @ q, _kept(p, keep, keep_scale).mT @ dy
    summed = (x.unflatten(1, (k.shape[1], -1)).sum(2) for x in shared)
    grads = (ds @ _repeated(k, q), *summed)
    return tuple(g.transpose(1, 2).contiguous().to(dtype) for g in grads)


@attention_backward.register_fake
def _(
    dy: Tensor, y: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(_rows_first(x, x.shape[-1]) for x in (q, k, v))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, causal, scale, keep_scale = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.mark_non_differentiable(output[1])
    ctx.options = (causal, scale, keep_scale)


def _differentiate(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    grads = torch.ops.sardonyx.attention_backward(dy, *saved, *ctx.options)
    return *(g.transpose(1, 2) for g in grads), *(None,) * 5


attention.register_autograd(_differentiate, setup_context=_save)


def replace_attention_calls(module: fx.GraphModule) -> None:
    """Replace the calls of `scaled_dot_product_attention` in a graph of TorchDynamo."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is functional.scaled_dot_product_attention:
            node.target = _attend
    module.recompile()


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute `scaled_dot_product_attention`: in training by `sardonyx::attention`."""
    is_training = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if not (is_training or dropout_p) or dropout_p == 1 or not _is_supported(q, k, v, attn_mask):
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    q, k, v, attn_mask = in_autocast_type(q, k, v, attn_mask)
    keep = None
    if dropout_p:
        # Drawn in the shape and order of eager's contiguous scores, so that the random numbers
        # agree.
        scores = q.new_empty((*q.shape[:3], k.shape[2]), dtype=torch.bool)
        keep = torch.ops.aten.bernoulli.p(scores, 1 - dropout_p)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    y, _ = torch.ops.sardonyx.attention(
        q, k, v, attn_mask, keep, is_causal, factor, 1 / (1 - dropout_p)
    )
    return y.transpose(1, 2)  # type: ignore[no-any-return]


def _is_supported(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Whether `sardonyx::attention` supports a call: CPU, 4 axes, no gradient of the mask."""
    if q.device.type != "cpu" or any(x.dim() != 4 for x in (q, k, v)):
        return False
    if mask is not None and (mask.requires_grad or mask.dim() > 4):
        return False
    has_same_batch = q.shape[0] == k.shape[0] == v.shape[0] and k.shape[1] == v.shape[1]
    has_groups = k.shape[1] != 0 and q.shape[1] % k.shape[1] == 0
    return has_same_batch and has_groups and isinstance(q.shape[-1], int)

"""Scaled dot-product attention: torch's flash attention, and the ops of `dynamo.attention`.

No scores are saved: the forward op saves the logsumexp of each row, from which the backward op
recomputes the probabilities.
"""

from __future__ import annotations

import math
from typing import Any

from sardonyx.dynamo.aten_builder import AtenBuilder, Unsupported, static
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import BOOL
from sardonyx.graph.graph import Value
from sardonyx.graph.op import GRADIENT


@lowers("_scaled_dot_product_flash_attention_for_cpu.default")
def _(
    b: AtenBuilder,
    q: Value,
    k: Value,
    v: Value,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    if dropout:
        raise Unsupported("flash attention with dropout")
    if any(user.args[1] == 1 for user in b.call_node.users):  # the logsumexp is read
        options = {"is_causal": int(causal), "scale": _scale(b, 0, scale)}
        y, lse = _training(b, q, k, v, attn_mask, None, **options)
        return b.typed_as_out(_swapped(b, y), lse)
    options = {} if scale is None else {"scale": float(scale)}
    if attn_mask is not None and attn_mask.tensor.dtype is not BOOL:
        attn_mask = b.cast(attn_mask, q.tensor.dtype)
    return b.Attention(q, k, v, attn_mask, is_causal=int(causal), **options), None


@lowers("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def _(
    b: AtenBuilder,
    dy: Value,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    lse: Value,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    if dropout:
        raise Unsupported("flash attention with dropout")
    outputs = _swapped(b, dy), _swapped(b, out), lse
    options = {"is_causal": int(causal), "scale": _scale(b, 1, scale)}
    grads = _gradients(b, outputs, (q, k, v), attn_mask, None, **options)
    return b.typed_as_out(*(_swapped(b, g) for g in grads))


@lowers("attention.default", namespace="sardonyx")
def _(
    b: AtenBuilder,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    keep: Value | None,
    causal: bool,
    scale: float,
    keep_scale: float,
) -> tuple[Value | None, ...]:
    options = {"is_causal": int(causal), "scale": scale, "keep_scale": keep_scale}
    return b.typed_as_out(*_training(b, q, k, v, mask, keep, **options))


@lowers("attention_backward.default", namespace="sardonyx")
def _(
    b: AtenBuilder,
    dy: Value,
    y: Value,
    lse: Value,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    keep: Value | None,
    causal: bool,
    scale: float,
    keep_scale: float,
) -> tuple[Value | None, ...]:
    options = {"is_causal": int(causal), "scale": scale, "keep_scale": keep_scale}
    return b.typed_as_out(*_gradients(b, (dy, y, lse), (q, k, v), mask, keep, **options))


def _training(b: AtenBuilder, *operands: Value | None, **options: Any) -> tuple[Value, ...]:
    """Return the output, with rows before heads, and the logsumexp of each row."""
    return b.node(
        "AttentionTraining", *_operands(b, *operands), outputs=2, domain=GRADIENT, **options
    ).outputs


def _gradients(
    b: AtenBuilder,
    outputs: tuple[Value, Value, Value],
    heads: tuple[Value, Value, Value],
    mask: Value | None,
    keep: Value | None,
    **options: Any,
) -> tuple[Value, ...]:
    """Return the gradients of q, k and v, with rows before heads."""
    q, k, v, mask, keep = _operands(b, *heads, mask, keep)
    dy, y, lse = (b.wide(x) for x in outputs)
    return b.node(
        "AttentionGradient", dy, q, k, v, y, lse, mask, keep,
        outputs=3, domain=GRADIENT, **options,
    ).outputs  # fmt: skip


def _operands(b: AtenBuilder, *operands: Value | None) -> list[Value | None]:
    """Return q, k, v, mask and keep; 16-bit floats are computed in float32, as torch does."""
    q, k, v, mask, keep = (None if x is None else b.wide(x) for x in operands)
    if q is not None and mask is not None and mask.tensor.dtype is not BOOL:
        mask = b.cast(mask, q.tensor.dtype)
    return [q, k, v, mask, keep]


def _scale(b: AtenBuilder, q: int, scale: float | None) -> float:
    """Return the factor of the scores; `q` is the argument of the queries."""
    if scale is not None:
        return float(scale)
    return 1 / math.sqrt(static(b.fake(q).shape[-1], "the width of the heads"))


def _swapped(b: AtenBuilder, x: Value) -> Value:
    """Swap heads and rows."""
    return b.Transpose(x, perm=(0, 2, 1, 3))

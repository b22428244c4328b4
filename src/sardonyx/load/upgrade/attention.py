"""Upgrades of the attention ops, and replacements of contrib ops by standard ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import same
from sardonyx.graph.dtype import F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("Attention", below=24)
def broadcast_mask_to_all_keys(b: Builder, node: OldNode) -> Sequence[Value]:
    """Expand a mask of one column, which broadcast before opset 24 and masks all other keys now."""
    inputs = list(node.inputs)
    mask = node.input(3)
    if mask is not None and not _has_many_columns(mask):
        total = b.Shape(node.input(1), start=-2, end=-1)
        past = node.input(4)
        if past is not None:
            total = b.Add(total, b.Shape(past, start=2, end=3))
        inputs[3] = b.Expand(mask, total)
    return b.node("Attention", *inputs, outputs=node.n_outputs, **node.attrs).outputs


def _has_many_columns(mask: Value) -> bool:
    """Return whether the mask is known not to have a single column."""
    fact = mask.fact
    return isinstance(fact, Fact) and bool(fact.shape) and same(fact.dims[-1], 1) is False


@UPGRADES.rule("GemmaRotaryEmbedding", domain=MICROSOFT)
def gemma_rotary_embedding(b: Builder, node: OldNode) -> Any:
    """RoPE with q and k already rotated by half a head: x * cos + rotated * sin."""
    angles, q, rotated_q, k, rotated_k = node.checked_inputs(5)
    cos, sin = (b.Cast(y, to=F16.onnx) for y in (b.Cos(angles), b.Sin(angles)))
    cos, sin = b.Unsqueeze(cos, b.ints(1)), b.Unsqueeze(sin, b.ints(1))
    pairs = ((q, rotated_q), (k, rotated_k))
    return tuple(b.Add(b.Mul(x, cos), b.Mul(rotated, sin)) for x, rotated in pairs)


@UPGRADES.rule("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(b: Builder, node: OldNode) -> Any:
    """decay = softplus(x + bias) * factor, and beta = sigmoid(b)."""
    x, bias, factor = node.checked_inputs(3, 4)[:3]
    decay = b.Mul(b.Softplus(b.Add(b.Cast(x, to=F32.onnx), bias)), factor)
    rate = node.input(3)
    if rate is None and node.n_outputs > 1:
        raise InvalidGraph("the output beta is sigmoid(b), and the input b is missing")
    return b.CastLike(decay, x), None if rate is None else b.Sigmoid(rate)

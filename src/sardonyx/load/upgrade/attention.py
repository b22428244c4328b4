"""Older forms of the attention ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import same
from sardonyx.graph.dtype import F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Attention", below=24)
def one_column_serves_all_keys(b: Builder, node: OldNode) -> Sequence[Value]:
    """A mask of one column was broadcast; a short mask shuts out keys since opset 24."""
    inputs = list(node.inputs)
    mask = node.input(3)
    if mask is not None and not _is_wide(mask):
        total = b.Shape(node.input(1), start=-2, end=-1)
        past = node.input(4)
        if past is not None:
            total = b.Add(total, b.Shape(past, start=2, end=3))
        inputs[3] = b.Expand(mask, total)
    return b.node("Attention", *inputs, outputs=node.n_outputs, **node.attrs).outputs


def _is_wide(mask: Value) -> bool:
    """Whether the mask is known to have more columns than one."""
    fact = mask.fact
    return isinstance(fact, Fact) and bool(fact.shape) and same(fact.dims[-1], 1) is False


@upgrade("GemmaRotaryEmbedding", below=ANY, domain=MICROSOFT)
def turned_by_given_angles(b: Builder, node: OldNode) -> Any:
    angles, q, turned_q, k, turned_k = node.given(5)
    cos, sin = (
        b.Unsqueeze(b.Cast(part, to=F16.onnx), b.ints(1)) for part in (b.Cos(angles), b.Sin(angles))
    )
    pairs = ((q, turned_q), (k, turned_k))
    return tuple(b.Add(b.Mul(x, cos), b.Mul(rotated, sin)) for x, rotated in pairs)


@upgrade("LinearAttentionGate", below=ANY, domain=MICROSOFT)
def decay_and_rate(b: Builder, node: OldNode) -> Any:
    x, bias, factor = node.given(3, 4)[:3]
    decay = b.Mul(b.Softplus(b.Add(b.Cast(x, to=F32.onnx), bias)), factor)
    rate = node.input(3)
    if rate is None and node.n_outputs > 1:
        raise InvalidGraph("beta is made of b, which is missing")
    return b.CastLike(decay, x), None if rate is None else b.Sigmoid(rate)


UPGRADES: Final = (
    *one_column_serves_all_keys,
    *turned_by_given_angles,
    *decay_and_rate,
)

"""The gradient of Dropout: its mask and scale."""

from __future__ import annotations

from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.gradient_rules import GradientBuilder, gradient, saved


@gradient("Dropout")
def _(b: GradientBuilder, node: Node, dy: Value | None, *_: Value | None) -> Value | None:
    training, ratio = optional_input(node, 2), optional_input(node, 1)
    if dy is None or training is None or training.tensor.ints == (0,):
        return dy
    dtype = input_of(node, 0).tensor.dtype
    one = b.const(1, dtype)
    share = b.const(0.5, dtype) if ratio is None else b.cast(ratio, dtype)
    # A ratio of 1 drops everything: any finite scale will do.
    keep_ratio = b.Sub(one, share)
    scale = b.Reciprocal(b.Where(b.Greater(keep_ratio, 0.0), keep_ratio, one))
    if training.tensor.ints is None:
        scale = b.Where(training, scale, one)
    return b.where(saved(b, node, 1), b.Mul(dy, scale))

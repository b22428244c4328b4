"""LayerNormalization fusion: the op written out by exporters as means and a square root."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.graph import Node, Value, optional_input
from sardonyx.ops.builder import Builder
from sardonyx.passes.rule import P, hole, need, present, ranked, rule, scalar

x, eps, scale, shift = hole("x"), hole("eps"), hole("scale"), hole("shift")
# The variance is the mean of squared differences; exporters write Pow or Mul.
_mean = P.ReduceMean(x, rest=True).named("mean")
_centred = x - _mean
_squares = (P.Pow(_centred, 2.0), _centred * _centred)
_plain = tuple(
    _centred / P.Sqrt(P.ReduceMean(square, rest=True).named("variance") + eps)
    for square in _squares
)


@rule(*(norm * scale + shift for norm in _plain), aliases="LayerNormFusion")
def layer_norm(  # noqa: PLR0913 - the holes of the pattern
    b: Builder, x: Value, eps: Value, scale: Value, shift: Value, mean: Node, variance: Node
) -> Value:
    """(x - mean) / sqrt(variance + eps) * scale + shift over the last dims."""
    ranked(x)
    rank = x.tensor.rank
    axis = _first_axis(mean, rank)
    # Both means must be over the same dims, else this is another function.
    need(axis == _first_axis(variance, rank), "mean and variance are over different dims")
    number = present(scalar(eps), "epsilon is not a constant")
    # LayerNormalization does not broadcast scale and shift over its axes.
    dims = x.tensor.dims[axis:]
    is_full = scale.tensor.shape == shift.tensor.shape == dims
    need(is_full, "scale or shift has another shape")
    need(x.tensor.dtype is scale.tensor.dtype, "types differ")
    return b.LayerNormalization(x, scale, shift, like=x, axis=axis - rank, epsilon=number)


def _first_axis(node: Node, rank: int) -> int:
    """The first dim that a mean reduces; it must reduce all dims from there on."""
    need(node.attrs["keepdims"], "dims are dropped")
    axes = present(present(optional_input(node, 1), "no axes").tensor.ints, "axes are not constant")
    need(axes, "no axes")
    reduced = sorted(a % rank for a in axes)
    need(reduced == list(range(reduced[0], rank)), "not the last dims")
    return reduced[0]


RULES: Final[tuple[Any, ...]] = layer_norm

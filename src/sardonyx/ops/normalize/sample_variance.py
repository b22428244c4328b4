"""The variance that training steps average: of a sample, from that of the batch."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from sardonyx.graph.dim import Size, product
from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import GRADIENT, Op
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.gradient_rules import wider

sample_variance = Op(
    "SampleVariance",
    1,
    "x:T variance:V",
    "y:V",
    types={"T": FLOATS, "V": FLOATS},
    domain=GRADIENT,
)


def _count(fact: Fact) -> Size:
    """Return the number of values per channel, over which batch norms compute statistics."""
    return product((*fact.dims[:1], *fact.dims[2:]))


@sample_variance.infer
def _(g: Scope, x: Fact, variance: Fact) -> Fact:
    what = "BatchNormalization in training needs more than one value per channel"
    g.at_least(_count(x), 2, what)
    return variance.without_contents()


@sample_variance.reference
def _(x: Array, variance: Array) -> Array:
    n = math.prod((*x.shape[:1], *x.shape[2:]))
    return np.asarray((wide(variance) * (n / (n - 1))).astype(variance.dtype))


@sample_variance.decompose
def _(b: Builder, node: Node) -> Value:
    x, variance = input_of(node, 0), input_of(node, 1)
    n, dtype = _count(x.tensor), variance.tensor.dtype
    if isinstance(n, int):
        return b.Mul(variance, n / (n - 1))
    axes = b.ints(0, *range(2, x.tensor.rank))
    count = b.ReduceProd(b.Gather(b.Shape(x), axes), keepdims=0)
    ratio = b.Div(*(b.cast(m, wider(dtype)) for m in (count, b.Sub(count, 1))))
    return b.Mul(variance, b.cast(ratio, dtype))


OPS: Final = (sample_variance,)

"""SkipLayerNormalization: input + skip + bias, then layer or RMS normalization."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array, float32, wide
from sardonyx.ops.normalize.standard import layer_norm, simplified

_SCHEMA: Final[dict[str, Any]] = {
    "outputs": "output:T mean:U? inv_std_var:U? input_skip_bias_sum:T?",
    "domain": MICROSOFT,
    "attrs": {"epsilon": float32(1e-12)},
    "types": {"T": frozenset((F32, F16, BF16)), "U": frozenset((F32,))},
}
skip_layer: Final = Op(
    "SkipLayerNormalization", 1, "input:T skip:T gamma:T beta:T? bias:T?", **_SCHEMA
)
skip_simplified: Final = Op(
    "SkipSimplifiedLayerNormalization", 1, "input:T skip:T gamma:T bias:T?", **_SCHEMA
)


@skip_layer.infer
@skip_simplified.infer
def _(g: Scope, x: Fact, skip: Fact, *vectors: Fact | None, epsilon: float) -> tuple[Fact, ...]:
    if x.rank not in (2, 3):
        raise InvalidGraph(f"the input must have rank 2 or 3, got {x}")
    if skip.rank not in (2, 3) or skip.rank > x.rank:
        raise InvalidGraph(f"skip {skip} cannot be added to {x}")
    for a, b in zip(skip.dims[-2:], x.dims[-2:], strict=True):
        g.equal(a, b, "skip and input differ in their last two dims")
    if skip.rank == 3:
        g.equal_or_one(skip.dims[0], x.dims[0], "skip does not broadcast over the batch")
    for fact in vectors:
        if fact is not None:
            if fact.rank != 1:
                raise InvalidGraph(f"gamma, beta and bias must be vectors, got {fact}")
            g.equal(fact.dims[0], x.dims[-1], "gamma, beta or bias does not fit the last dim")
    statistics = Fact(F32, (*x.dims[:-1], 1))
    return x.without_contents(), statistics, statistics, x.without_contents()


def _summed(x: Array, skip: Array, bias: Array | None) -> Array:
    total = wide(x) + wide(skip)
    return total if bias is None else total + wide(bias)


@skip_layer.reference
@np.errstate(all="ignore")
def _(
    x: Array, skip: Array, gamma: Array, beta: Array | None, bias: Array | None, *, epsilon: float
) -> tuple[Any, ...]:
    total = _summed(x, skip, bias)
    attrs = {**layer_norm.defaults, "epsilon": epsilon}
    y, mean, inverse = layer_norm.run((total, gamma, beta), attrs)
    return y.astype(x.dtype), mean, inverse, total.astype(x.dtype)


@skip_simplified.reference
@np.errstate(all="ignore")
def _(
    x: Array, skip: Array, gamma: Array, bias: Array | None, *, epsilon: float
) -> tuple[Any, ...]:
    total = _summed(x, skip, bias)
    attrs = {**simplified.defaults, "epsilon": epsilon}
    # The mean is an output of both ops; RMS normalization subtracts none.
    y, inverse = simplified.run((total, wide(gamma)), attrs)
    return y.astype(x.dtype), np.zeros_like(inverse), inverse, total.astype(x.dtype)


OPS: Final = (skip_layer, skip_simplified)

"""Ops of our own: what lowering makes. They never reach a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dim import Shape, evaluate
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops.declare import INTERNAL, Op, required
from sardonyx.ops.rules import Array

sizes = Op(
    "Sizes",
    1,
    "",
    "y:T",
    attrs={"fact": required("type")},
    domain=INTERNAL,
)
sizes.infer(lambda g, *, fact: fact)


@sizes.reference
def _(dims: Mapping[str, int], *, fact: Fact) -> Array:
    """A small integer tensor whose elements are known sizes, evaluated for the dims of this run."""
    shape, elements = fact.static, fact.sym
    assert shape is not None
    assert elements is not None
    numbers = [evaluate(e, dims) for e in elements]
    try:
        return np.array(numbers, fact.dtype.np).reshape(shape)
    except OverflowError:
        raise InvalidArgument(
            f"a computed size does not fit {fact.dtype}: {numbers!r:.200}", sizes=list(elements)
        ) from None


matmul_bias = Op("MatMulBias", 1, "x:T w:T bias:T", "y:T", domain=INTERNAL)


@matmul_bias.infer
def _(g: Scope, x: Fact, w: Fact, bias: Fact) -> Fact:
    g.equal(x.dims[-1], w.dims[0], "inner dimensions differ")
    return Fact(x.dtype, _out_shape(x.dims, w.dims))


def _out_shape(x: Shape, w: Shape) -> Shape:
    return (*x[:-1], w[1])


@matmul_bias.reference
def _(x: Any, w: Any, bias: Any) -> Any:
    """One number per column is added to the product of rows and a matrix."""
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    out = np.matmul(rows, w)
    out += bias
    return out.reshape(*x.shape[:-1], w.shape[1])


OPS: Final = (sizes, matmul_bias)

"""The gradient of a convolution by its weights, which training graphs contain."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.conv.standard import GEOMETRY
from sardonyx.ops.sliding_window import window_geometry, window_of

weight_gradient = Op(
    "ConvWeightGradient",
    1,
    "x:T dy:T",
    "dw:T",
    attrs={**GEOMETRY, "group": 1},
    types={"T": frozenset((F32,))},
    domain=INTERNAL,
)


@weight_gradient.infer
def _(g: Scope, x: Fact, dy: Fact, **attrs: Any) -> Fact:
    kernel, group = attrs["kernel_shape"], attrs["group"]
    if kernel is None or len(kernel) != x.rank - 2 or min(kernel, default=0) < 1 or group < 1:
        raise ShapeError(f"a kernel of {kernel} in {group} groups does not fit {x}")
    if dy.rank != x.rank:
        raise ShapeError(f"x and dy have one rank, not {x.rank} and {dy.rank}")
    window = window_of(kernel, attrs)
    window.check(g, x.dims[2:])
    g.equal(x.dims[0], dy.dims[0], "x and dy differ in batch")
    for have, size in zip(dy.dims[2:], window.outs(x.dims[2:]), strict=True):
        g.equal(have, size, "dy does not have the output's size")
    g.divides(group, x.dims[1], "group must divide the channels of x")
    g.divides(group, dy.dims[1], "group must divide the channels of dy")
    return x.shaped((dy.dims[1], x.dims[1] // group, *kernel))


@weight_gradient.reference
def _(x: Array, dy: Array, **attrs: Any) -> Array:
    """Multiply dy by the pixels that each tap reads, and sum over all positions."""
    kernel, group = tuple(attrs["kernel_shape"]), attrs["group"]
    n, channels = x.shape[:2]
    outs = dy.shape[1]
    geometry = window_geometry(window_of(kernel, attrs), x.shape[2:])
    images = x.reshape(n, group, channels // group, *x.shape[2:])
    grads = dy.reshape(n, group, outs // group, *dy.shape[2:])
    dw = np.zeros((group, outs // group, channels // group, geometry.n_taps), x.dtype)
    for tap, at, ins in geometry.taps():
        left = grads[:, :, :, *at].reshape(n, group, outs // group, -1)
        right = images[:, :, :, *ins].reshape(n, group, channels // group, -1)
        dw[..., tap] = np.einsum("ngop,ngcp->goc", left, right, optimize=True)
    return dw.reshape(outs, channels // group, *kernel)


OPS: Final = (weight_gradient,)

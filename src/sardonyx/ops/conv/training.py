"""The gradient of a convolution by its weights, which training graphs contain."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Shape, Size
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
    attrs={**GEOMETRY, "group": 1, "channels_last": 0},
    types={"T": frozenset((F32,))},
    domain=INTERNAL,
)


@weight_gradient.infer
def _(g: Scope, x: Fact, dy: Fact, **attrs: Any) -> Fact:
    kernel, group = attrs["kernel_shape"], attrs["group"]
    if kernel is None or len(kernel) != x.rank - 2 or min(kernel, default=0) < 1 or group < 1:
        raise ShapeError(f"a kernel of {kernel} in {group} groups does not fit {x}")
    if dy.rank != x.rank:
        raise ShapeError(f"x and dy must have the same rank, got {x.rank} and {dy.rank}")
    window = window_of(kernel, attrs)
    axis = _channel_axis(attrs)
    (channels, spatial), (out_channels, outs) = (_sizes(v, axis) for v in (x, dy))
    window.check(g, spatial)
    g.equal(x.dims[0], dy.dims[0], "x and dy differ in batch")
    for have, size in zip(outs, window.outs(spatial), strict=True):
        g.equal(have, size, "dy does not have the output's size")
    g.divides(group, channels, "group must divide the channels of x")
    g.divides(group, out_channels, "group must divide the channels of dy")
    return x.shaped((out_channels, channels // group, *kernel))


def _channel_axis(attrs: dict[str, Any]) -> int:
    return -1 if attrs["channels_last"] else 1


def _sizes(image: Fact, axis: int) -> tuple[Size, Shape]:
    """Return the channels and the spatial sizes of an image."""
    sizes = list(image.dims[1:])
    channels = sizes.pop(axis if axis < 0 else axis - 1)
    return channels, tuple(sizes)


@weight_gradient.reference
def _(x: Array, dy: Array, **attrs: Any) -> Array:
    """Multiply dy by the pixels that each tap reads, and sum over all positions."""
    kernel, group = tuple(attrs["kernel_shape"]), attrs["group"]
    x, dy = (np.moveaxis(v, _channel_axis(attrs), 1) for v in (x, dy))
    n, channels = x.shape[:2]
    out_channels = dy.shape[1]
    geometry = window_geometry(window_of(kernel, attrs), x.shape[2:])
    images = x.reshape(n, group, channels // group, *x.shape[2:])
    grads = dy.reshape(n, group, out_channels // group, *dy.shape[2:])
    dw = np.zeros((group, out_channels // group, channels // group, geometry.n_taps), x.dtype)
    for tap, at, ins in geometry.taps():
        left, right = grads[:, :, :, *at], images[:, :, :, *ins]
        left, right = (v.reshape(*v.shape[:3], math.prod(v.shape[3:])) for v in (left, right))
        dw[..., tap] = np.einsum("ngop,ngcp->goc", left, right, optimize=True)
    return dw.reshape(out_channels, channels // group, *kernel)


OPS: Final = (weight_gradient,)

"""Deformable convolution: every tap reads at its own offset, by bilinear interpolation.

DeformConv is DeformColumns, the sampled im2col matrix, and a matmul.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Shape, product
from sardonyx.graph.dtype import BF16, F16, F32, FLOATS, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.conv.im2col import add_bias
from sardonyx.ops.conv.standard import GEOMETRY, conv_shape
from sardonyx.ops.decomposition import Outputs, need, present
from sardonyx.ops.sample.interpolate import linear_taps, weighted_sum
from sardonyx.ops.sliding_window import WindowGeometry, window_geometry, window_of

_COLUMNS: Final = {**GEOMETRY, "offset_group": 1}
_DEFORM: Final = {**_COLUMNS, "group": 1}
_F32: Final = {"T": frozenset((F32,))}
deform = Op(
    "DeformConv", 22, "x:T w:T offset:T b:T? mask:T?", "y:T", attrs=_DEFORM, types={"T": FLOATS}
)
columns = Op(
    "DeformColumns", 1, "x:T offset:T mask:T?", "y:T", attrs=_COLUMNS, types=_F32, domain=INTERNAL
)


@deform.infer
def _(
    g: Scope, x: Fact, w: Fact, offset: Fact, b: Fact | None, mask: Fact | None, **attrs: Any
) -> Fact:
    y = Fact(x.dtype, conv_shape(g, x, w, b, attrs))
    _check_offsets(g, x, y, (offset, mask), w.dims[2:], attrs["offset_group"])
    return y


@columns.infer
def _(g: Scope, x: Fact, offset: Fact, mask: Fact | None, **attrs: Any) -> Fact:
    kernel = attrs["kernel_shape"]
    if kernel is None or len(kernel) != x.rank - 2 or min(kernel, default=0) < 1:
        raise ShapeError(f"a kernel of {kernel} does not fit {x}")
    window = window_of(kernel, attrs)
    window.check(g, x.dims[2:])
    y = x.shaped((x.dims[0], x.dims[1] * math.prod(kernel), *window.outs(x.dims[2:])))
    _check_offsets(g, x, y, (offset, mask), kernel, attrs["offset_group"])
    return y


def _check_offsets(
    g: Scope, x: Fact, y: Fact, facts: tuple[Fact, Fact | None], kernel: Shape, groups: int
) -> None:
    """Check that offsets have one number per tap, axis and output, and masks one per tap."""
    if groups < 1:
        raise ShapeError(f"offset_group must be at least 1, got {groups}")
    taps = product(kernel) * groups
    per_tap = (len(kernel), 1)
    for fact, each, name in zip(facts, per_tap, ("offset", "mask"), strict=True):
        if fact is None:
            continue
        if fact.rank != y.rank:
            raise ShapeError(f"{name} has rank {fact.rank}, and x has {y.rank}")
        expected = (y.dims[0], taps * each, *y.dims[2:])
        for i, (have, size) in enumerate(zip(fact.dims, expected, strict=True)):
            g.equal(have, size, f"axis {i} of {name} does not fit the output")
    g.divides(groups, x.dims[1], "offset_group must divide the channels of x")


@deform.reference
@in_wide
def _(
    x: Array, w: Array, offset: Array, bias: Array | None, mask: Array | None, **attrs: Any
) -> Array:
    attrs["kernel_shape"] = w.shape[2:]
    sampled = _deform_columns(x, offset, mask, **attrs)
    n, out_channels, group, outs = x.shape[0], w.shape[0], attrs["group"], sampled.shape[2:]
    depth = math.prod(w.shape[1:])
    grouped = sampled.reshape(n, group, depth, math.prod(outs))
    y = np.matmul(w.reshape(group, out_channels // group, depth), grouped)
    return add_bias(y.reshape(n, out_channels, *outs), bias)


def _deform_columns(x: Array, offset: Array, mask: Array | None = None, **attrs: Any) -> Array:
    """Return the sampled im2col matrix: (batch, channels * taps, *outputs)."""
    geometry = window_geometry(window_of(attrs["kernel_shape"], attrs), x.shape[2:])
    n, taps, group = x.shape[0], geometry.n_taps, attrs["offset_group"]
    shifts = offset.reshape(n, group, taps, len(geometry.outs), *geometry.outs)
    masks = None if mask is None else mask.reshape(n, group, taps, *geometry.outs)
    y = np.empty((n, x.shape[1] * taps, *geometry.outs), x.dtype)
    for image in range(n if y.size else 0):
        own_mask = None if masks is None else masks[image]
        y[image] = _sampled(x[image], shifts[image], own_mask, geometry).reshape(y.shape[1:])
    return y


columns.reference(_deform_columns)


def _sampled(x: Array, offset: Array, mask: Array | None, geometry: WindowGeometry) -> Array:
    """Return the sampled im2col matrix of one image: (channels, taps * outputs)."""
    groups, taps, rank = offset.shape[:3]
    each = x.shape[0] // groups
    grid = np.indices(geometry.kernel).reshape(rank, taps, *(1,) * rank)
    columns = []
    for group in range(groups):
        axes = []
        for i in range(rank):
            out = np.arange(geometry.outs[i]) * geometry.strides[i] - geometry.front[i]
            start = out.reshape(-1, *(1,) * (rank - 1 - i))
            position = offset[group, :, i] + (start + grid[i] * geometry.dilations[i])
            axes.append(linear_taps(position.reshape(-1).astype(x.dtype), geometry.ins[i]))
        read = weighted_sum(x[group * each : (group + 1) * each], axes)
        columns.append(read if mask is None else read * mask[group].reshape(-1))
    return np.concatenate(columns)


@deform.decompose
def _(b: Builder, node: Node) -> Outputs:
    """DeformConv: im2col with sampled taps (DeformColumns), then a matmul per group."""
    x, w, out = input_of(node, 0), input_of(node, 1), node.outputs[0]
    offset, bias, mask = input_of(node, 2), optional_input(node, 3), optional_input(node, 4)
    shape, attrs = present(w.tensor.static, "the weights have symbolic sizes"), node.attrs
    dtype = x.tensor.dtype
    need(dtype in (F32, F16, BF16), "not float32, float16 or bfloat16")
    need(0 not in shape and len(shape) <= 5, "the weights are empty, or have too many dims")
    geometry = {k: v for k, v in attrs.items() if k != "group"}
    geometry["kernel_shape"] = shape[2:]
    # 16-bit floats are sampled and summed in float32.
    x, w, offset = (b.cast(v, F32) for v in (x, w, offset))
    mask = mask if mask is None else b.cast(mask, F32)
    columns = b.DeformColumns(x, offset, mask, domain=INTERNAL, **geometry)
    group, depth = attrs["group"], math.prod(shape[1:])
    # [batch, group, channels * taps, pixels].
    grouped = b.Reshape(columns, b.ints(0, group, depth, -1))
    y = b.MatMul(b.Reshape(w, b.ints(group, shape[0] // group, depth)), grouped)
    sizes = b.Sizes(domain=INTERNAL, fact=Fact(I64, (len(shape),), None, out.tensor.dims))
    y = b.Reshape(y, sizes, allowzero=1, like=Value("", Fact(F32, out.tensor.dims)))
    if bias is not None:
        bias = b.Reshape(b.cast(bias, F32), b.ints(shape[0], *((1,) * (len(shape) - 2))))
        y = b.Add(y, bias)
    return (b.cast(y, dtype),)


OPS: Final = (deform, columns)

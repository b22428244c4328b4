"""Deformable convolution: every tap reads at its own offset, by bilinear interpolation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Shape, product
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops.arrays import Array
from sardonyx.ops.conv.im2col import SCRATCH_BYTES, add_bias
from sardonyx.ops.sample.interpolate import linear_taps, weighted_sum
from sardonyx.ops.sliding_window import Slices, WindowGeometry, blocks, window_geometry, window_of


def check_offsets(
    g: Scope, y: Fact, facts: tuple[Fact, Fact | None], kernel: Shape, groups: int
) -> None:
    """Check that offsets have one number per tap, axis and output, and masks one per tap."""
    if groups < 1:
        raise ShapeError(f"offset_group is {groups}, and must be 1 or more")
    taps = product(kernel) * groups
    per_tap = (len(kernel), 1)
    for fact, each, name in zip(facts, per_tap, ("offset", "mask"), strict=True):
        if fact is None:
            continue
        if fact.rank != y.rank:
            raise ShapeError(f"{name} has rank {fact.rank}, and x has {y.rank}")
        expected = (y.dims[0], taps * each, *y.dims[2:])
        for i, (have, need) in enumerate(zip(fact.dims, expected, strict=True)):
            g.equal(have, need, f"axis {i} of {name} does not fit the output")


def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    **attrs: Any,
) -> Array:
    """DeformConv by im2col with sampled columns, one matrix product per block of outputs."""
    geometry = window_geometry(window_of(w.shape[2:], attrs), x.shape[2:])
    n, channels = x.shape[:2]
    maps, group, taps = w.shape[0], attrs["group"], geometry.n_taps
    matrix = w.reshape(group, maps // group, -1)
    y = np.empty((n, maps, *geometry.outs), x.dtype)
    limit = max(1, SCRATCH_BYTES // max(1, channels * taps * x.itemsize))
    shifts = offset.reshape(n, attrs["offset_group"], taps, len(geometry.outs), *geometry.outs)
    masks = None if mask is None else mask.reshape(n, attrs["offset_group"], taps, *geometry.outs)
    for batch, *parts in blocks((n, *geometry.outs), limit) if y.size else ():
        sizes = tuple(p.stop - p.start for p in parts)
        for image in range(batch.start, batch.stop):
            offsets = shifts[image][:, :, :, *parts]
            mask_block = None if masks is None else masks[image][:, :, *parts]
            columns = _columns(x[image], offsets, mask_block, geometry, tuple(parts))
            product = np.matmul(matrix, columns.reshape(group, -1, math.prod(sizes)))
            y[image][:, *parts] = product.reshape(maps, *sizes)
    return add_bias(y, bias)


def deform_columns(x: Array, offset: Array, mask: Array | None = None, **attrs: Any) -> Array:
    """Return the sampled im2col matrix of all outputs: (batch, channels * taps, *outputs)."""
    geometry = window_geometry(window_of(attrs["kernel_shape"], attrs), x.shape[2:])
    n, taps, group = x.shape[0], geometry.n_taps, attrs["offset_group"]
    shifts = offset.reshape(n, group, taps, len(geometry.outs), *geometry.outs)
    masks = None if mask is None else mask.reshape(n, group, taps, *geometry.outs)
    y = np.empty((n, x.shape[1] * taps, *geometry.outs), x.dtype)
    parts = tuple(slice(0, size) for size in geometry.outs)
    for image in range(n if y.size else 0):
        mask_block = None if masks is None else masks[image]
        y[image] = _columns(x[image], shifts[image], mask_block, geometry, parts).reshape(
            y.shape[1:]
        )
    return y


def _columns(
    x: Array, offset: Array, mask: Array | None, geometry: WindowGeometry, parts: Slices
) -> Array:
    """Return the sampled im2col matrix of a block of outputs: (channels, taps, outputs)."""
    groups, taps, rank = offset.shape[:3]
    each = x.shape[0] // groups
    grid = np.indices(geometry.kernel).reshape(rank, taps, *(1,) * rank)
    columns = []
    for group in range(groups):
        axes = []
        for i in range(rank):
            out = np.arange(parts[i].start, parts[i].stop) * geometry.strides[i] - geometry.front[i]
            start = out.reshape(-1, *(1,) * (rank - 1 - i))
            position = offset[group, :, i] + (start + grid[i] * geometry.dilations[i])
            axes.append(linear_taps(position.reshape(-1).astype(x.dtype), geometry.ins[i]))
        read = weighted_sum(x[group * each : (group + 1) * each], axes)
        columns.append(read if mask is None else read * mask[group].reshape(-1))
    return np.concatenate(columns)

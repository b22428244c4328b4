"""Deformable convolution: every tap reads at a position of its own, between the elements."""

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
from sardonyx.ops.sample.interpolate import linear_taps, weigh
from sardonyx.ops.sliding_window import Slices, Walk, blocks, walk, window


def check_offsets(
    g: Scope, y: Fact, given: tuple[Fact, Fact | None], kernel: Shape, groups: int
) -> None:
    """Offsets hold one number per tap, axis and output; masks one per tap and output."""
    if groups < 1:
        raise ShapeError(f"offset_group is {groups}, and must be 1 or more")
    taps = product(kernel) * groups
    per_tap = (len(kernel), 1)
    for fact, each, name in zip(given, per_tap, ("offset", "mask"), strict=True):
        if fact is None:
            continue
        if fact.rank != y.rank:
            raise ShapeError(f"{name} has rank {fact.rank}, and x has {y.rank}")
        want = (y.dims[0], taps * each, *y.dims[2:])
        for i, (have, need) in enumerate(zip(fact.dims, want, strict=True)):
            g.equal(have, need, f"axis {i} of {name} does not fit the output")


def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    **attrs: Any,
) -> Array:
    """The reference: columns sampled block by block, then one product per block."""
    path = walk(window(w.shape[2:], attrs), x.shape[2:])
    n, channels = x.shape[:2]
    maps, group, taps = w.shape[0], attrs["group"], path.n_taps
    matrix = w.reshape(group, maps // group, -1)
    y = np.empty((n, maps, *path.outs), x.dtype)
    limit = max(1, SCRATCH_BYTES // max(1, channels * taps * x.itemsize))
    shifts = offset.reshape(n, attrs["offset_group"], taps, len(path.outs), *path.outs)
    masks = None if mask is None else mask.reshape(n, attrs["offset_group"], taps, *path.outs)
    for batch, *parts in blocks((n, *path.outs), limit) if y.size else ():
        sizes = tuple(p.stop - p.start for p in parts)
        for image in range(batch.start, batch.stop):
            moved = shifts[image][:, :, :, *parts]
            kept = None if masks is None else masks[image][:, :, *parts]
            columns = _columns(x[image], moved, kept, path, tuple(parts))
            product = np.matmul(matrix, columns.reshape(group, -1, math.prod(sizes)))
            y[image][:, *parts] = product.reshape(maps, *sizes)
    return add_bias(y, bias)


def deform_columns(x: Array, offset: Array, mask: Array | None = None, **attrs: Any) -> Array:
    """What every tap reads for all outputs: (batch, channels * taps, *outputs)."""
    path = walk(window(attrs["kernel_shape"], attrs), x.shape[2:])
    n, taps, group = x.shape[0], path.n_taps, attrs["offset_group"]
    shifts = offset.reshape(n, group, taps, len(path.outs), *path.outs)
    masks = None if mask is None else mask.reshape(n, group, taps, *path.outs)
    y = np.empty((n, x.shape[1] * taps, *path.outs), x.dtype)
    parts = tuple(slice(0, size) for size in path.outs)
    for image in range(n if y.size else 0):
        kept = None if masks is None else masks[image]
        y[image] = _columns(x[image], shifts[image], kept, path, parts).reshape(y.shape[1:])
    return y


def _columns(x: Array, offset: Array, mask: Array | None, path: Walk, parts: Slices) -> Array:
    """What every tap reads for a block of outputs: (channels, taps, outputs)."""
    groups, taps, rank = offset.shape[:3]
    each = x.shape[0] // groups
    grid = np.indices(path.kernel).reshape(rank, taps, *(1,) * rank)
    columns = []
    for part in range(groups):
        axes = []
        for i in range(rank):
            out = np.arange(parts[i].start, parts[i].stop) * path.strides[i] - path.front[i]
            start = out.reshape(-1, *(1,) * (rank - 1 - i))
            position = offset[part, :, i] + (start + grid[i] * path.dilations[i])
            axes.append(linear_taps(position.reshape(-1).astype(x.dtype), path.ins[i]))
        read = weigh(x[part * each : (part + 1) * each], axes)
        columns.append(read if mask is None else read * mask[part].reshape(-1))
    return np.concatenate(columns)

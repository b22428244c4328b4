"""Convolutions as matrix products over bounded scratch memory."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from sardonyx.ops.arrays import Array
from sardonyx.ops.sliding_window import Slices, Walk, blocks

SCRATCH_BYTES: Final = 8 << 20  # for unfolded columns; stays in a last-level cache
_TILE: Final = 1 << 16  # elements of a depthwise accumulator; stays in a core's own cache


def convolve(x: Array, w: Array, path: Walk, group: int) -> Array:
    """The product of x (batch, channels, ...) and weights (maps, channels / group, ...)."""
    y = np.empty((x.shape[0], w.shape[0], *path.outs), x.dtype)
    if y.size == 0:
        return y
    if w.shape[1] == 1 and group > 1:
        _depthwise(x, w, y, path)
    elif path.n_taps == 1 and not any(path.front) and _covers(path):
        _pointwise(x, w, y, path, group)
    else:
        _unfolded(x, w, y, path, group)
    return y


def _covers(path: Walk) -> bool:
    """Whether no output of a one-tap kernel lies in the padding."""
    sizes = zip(path.ins, path.outs, path.strides, strict=True)
    return all((out - 1) * stride < size for size, out, stride in sizes)


def _pointwise(x: Array, w: Array, y: Array, path: Walk, group: int) -> None:
    n, maps = y.shape[:2]
    steps = zip(path.outs, path.strides, strict=True)
    seen = x[:, :, *(slice(0, (o - 1) * s + 1, s) for o, s in steps)]
    columns = seen.reshape(n, group, w.shape[1], math.prod(path.outs))
    matrix = w.reshape(group, maps // group, w.shape[1])
    np.matmul(matrix, columns, out=y.reshape(n, group, maps // group, columns.shape[-1]))


def _unfolded(x: Array, w: Array, y: Array, path: Walk, group: int) -> None:
    """Each output's inputs become a column; one product takes a block of columns."""
    n, channels = x.shape[:2]
    maps, taps = w.shape[0], path.n_taps
    matrix = w.reshape(group, maps // group, w.shape[1] * taps)
    column = max(1, channels * taps)
    limit = max(1, SCRATCH_BYTES // (column * x.itemsize))
    scratch = np.empty(column * min(limit, n * math.prod(path.outs)), x.dtype)
    for batch, *parts in blocks((n, *path.outs), limit):
        sizes = tuple(p.stop - p.start for p in (batch, *parts))
        count = math.prod(sizes)
        if scratch.size < column * count:
            scratch = np.empty(column * count, x.dtype)
        columns = scratch[: column * count].reshape(sizes[0], channels, taps, *sizes[1:])
        _unfold(x[batch], columns, path, tuple(parts))
        flat = columns.reshape(sizes[0], group, w.shape[1] * taps, count // sizes[0])
        product = np.matmul(matrix, flat)
        y[batch, :, *parts] = product.reshape(sizes[0], maps, *sizes[1:])


def _unfold(x: Array, columns: Array, path: Walk, parts: Slices) -> None:
    written = 0
    found = list(path.taps(parts))
    positions = math.prod(columns.shape[3:])
    for _, outs, _ in found:
        written += math.prod(o.stop - o.start for o in outs)
    if written < positions * path.n_taps:
        columns[...] = 0
    for tap, outs, ins in found:
        columns[:, :, tap][:, :, *outs] = x[:, :, *ins]


def _depthwise(x: Array, w: Array, y: Array, path: Walk) -> None:
    """Every channel by itself: shifted slices, scaled and summed in tiles of a few channels."""
    n, channels = x.shape[:2]
    each = w.shape[0] // channels
    rank = len(path.outs)
    weights = w.reshape(channels, each, path.n_taps, *(1,) * rank)
    per_channel = each * math.prod(path.outs)
    step = max(1, _TILE // max(1, per_channel))
    found = list(path.taps())
    tiled = y.reshape(n, channels, each, *path.outs)
    product = np.empty((min(step, channels), each, *path.outs), x.dtype)
    for image in range(n):
        for lo in range(0, channels, step):
            part = slice(lo, min(channels, lo + step))
            total = tiled[image, part]
            total[...] = 0
            for tap, outs, ins in found:
                scaled = product[: total.shape[0], :, *outs]
                np.multiply(x[image, part, None, *ins], weights[part, :, tap], out=scaled)
                total[:, :, *outs] += scaled


def fold(x: Array, w: Array, y: Array, path: Walk, group: int) -> None:
    """Adds every input times the kernel into y, where `path` walks from y back to x."""
    n, channels = x.shape[:2]
    maps, taps = y.shape[1], path.n_taps
    matrix = w.reshape(group, channels // group, maps // group * taps).transpose(0, 2, 1)
    limit = max(1, SCRATCH_BYTES // max(1, maps * taps * x.itemsize))
    for batch, *parts in blocks((n, *path.outs), limit):
        sizes = tuple(p.stop - p.start for p in (batch, *parts))
        count = math.prod(sizes[1:])
        columns = x[batch, :, *parts].reshape(sizes[0], group, channels // group, count)
        product = np.matmul(matrix, columns).reshape(sizes[0], maps, taps, *sizes[1:])
        add_blocks(product, y[batch], path, tuple(parts))


def add_blocks(columns: Array, y: Array, path: Walk, parts: Slices | None = None) -> None:
    """Adds columns (batch, maps, taps, positions...) where the window has them in y."""
    for tap, outs, ins in path.taps(parts):
        y[:, :, *ins] += columns[:, :, tap][:, :, *outs]


def add_bias(y: Array, bias: Array | None) -> Array:
    """Y with one number added per channel, in place."""
    if bias is not None:
        y += bias.reshape(-1, *(1,) * (y.ndim - 2)).astype(y.dtype, copy=False)
    return y

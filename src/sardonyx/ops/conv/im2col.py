"""Convolutions in numpy: im2col blocks of bounded size, pointwise matmul, depthwise slices."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from sardonyx.ops.arrays import Array
from sardonyx.ops.sliding_window import Slices, WindowGeometry, blocks

SCRATCH_BYTES: Final = 8 << 20  # for im2col columns: they stay in the last-level cache
_TILE: Final = 1 << 16  # elements of a depthwise accumulator: it stays in L2


def convolve(x: Array, w: Array, geometry: WindowGeometry, group: int) -> Array:
    """Convolve x (batch, channels, ...) with weights (out_channels, channels / group, ...)."""
    y = np.empty((x.shape[0], w.shape[0], *geometry.outs), x.dtype)
    if y.size == 0:
        return y
    # One channel per group: a matmul per group would have one row, so slices are faster.
    if w.shape[1] == 1 and group > 1:
        _depthwise(x, w, y, geometry)
    elif geometry.n_taps == 1 and not any(geometry.front) and _covers(geometry):
        _pointwise(x, w, y, geometry, group)
    else:
        _unfolded(x, w, y, geometry, group)
    return y


def _covers(geometry: WindowGeometry) -> bool:
    """Whether no output of a one-tap kernel reads the padding."""
    sizes = zip(geometry.ins, geometry.outs, geometry.strides, strict=True)
    return all((out - 1) * stride < size for size, out, stride in sizes)


def _pointwise(x: Array, w: Array, y: Array, geometry: WindowGeometry, group: int) -> None:
    n, out_channels = y.shape[:2]
    steps = zip(geometry.outs, geometry.strides, strict=True)
    strided = x[:, :, *(slice(0, (o - 1) * s + 1, s) for o, s in steps)]
    columns = strided.reshape(n, group, w.shape[1], math.prod(geometry.outs))
    matrix = w.reshape(group, out_channels // group, w.shape[1])
    np.matmul(matrix, columns, out=y.reshape(n, group, out_channels // group, columns.shape[-1]))


def _unfolded(x: Array, w: Array, y: Array, geometry: WindowGeometry, group: int) -> None:
    """im2col: each output's inputs become a column; one matrix product per block of columns."""
    n, channels = x.shape[:2]
    out_channels, taps = w.shape[0], geometry.n_taps
    matrix = w.reshape(group, out_channels // group, w.shape[1] * taps)
    column = max(1, channels * taps)
    limit = max(1, SCRATCH_BYTES // (column * x.itemsize))
    scratch = np.empty(column * min(limit, n * math.prod(geometry.outs)), x.dtype)
    for batch, *parts in blocks((n, *geometry.outs), limit):
        sizes = tuple(p.stop - p.start for p in (batch, *parts))
        count = math.prod(sizes)
        if scratch.size < column * count:
            scratch = np.empty(column * count, x.dtype)
        columns = scratch[: column * count].reshape(sizes[0], channels, taps, *sizes[1:])
        _unfold(x[batch], columns, geometry, tuple(parts))
        flat = columns.reshape(sizes[0], group, w.shape[1] * taps, count // sizes[0])
        product = np.matmul(matrix, flat)
        y[batch, :, *parts] = product.reshape(sizes[0], out_channels, *sizes[1:])


def _unfold(x: Array, columns: Array, geometry: WindowGeometry, parts: Slices) -> None:
    written = 0
    taps = list(geometry.taps(parts))
    positions = math.prod(columns.shape[3:])
    for _, outs, _ in taps:
        written += math.prod(o.stop - o.start for o in outs)
    # Taps in the padding write nothing: zeros are needed only where there are any.
    if written < positions * geometry.n_taps:
        columns[...] = 0
    for tap, outs, ins in taps:
        columns[:, :, tap][:, :, *outs] = x[:, :, *ins]


def _depthwise(x: Array, w: Array, y: Array, geometry: WindowGeometry) -> None:
    """Depthwise: the sum over taps of shifted slices times weights, in tiles of channels."""
    n, channels = x.shape[:2]
    each = w.shape[0] // channels
    rank = len(geometry.outs)
    weights = w.reshape(channels, each, geometry.n_taps, *(1,) * rank)
    per_channel = each * math.prod(geometry.outs)
    step = max(1, _TILE // max(1, per_channel))
    taps = list(geometry.taps())
    tiled = y.reshape(n, channels, each, *geometry.outs)
    product = np.empty((min(step, channels), each, *geometry.outs), x.dtype)
    for image in range(n):
        for lo in range(0, channels, step):
            part = slice(lo, min(channels, lo + step))
            total = tiled[image, part]
            total[...] = 0
            for tap, outs, ins in taps:
                scaled = product[: total.shape[0], :, *outs]
                np.multiply(x[image, part, None, *ins], weights[part, :, tap], out=scaled)
                total[:, :, *outs] += scaled


def add_transposed(x: Array, w: Array, y: Array, geometry: WindowGeometry, group: int) -> None:
    """Transposed convolution: add every input times the kernel into y (matmul, then col2im).

    `geometry` is that of the convolution from y to x.
    """
    n, channels = x.shape[:2]
    out_channels, taps = y.shape[1], geometry.n_taps
    matrix = w.reshape(group, channels // group, out_channels // group * taps).transpose(0, 2, 1)
    limit = max(1, SCRATCH_BYTES // max(1, out_channels * taps * x.itemsize))
    for batch, *parts in blocks((n, *geometry.outs), limit):
        sizes = tuple(p.stop - p.start for p in (batch, *parts))
        count = math.prod(sizes[1:])
        columns = x[batch, :, *parts].reshape(sizes[0], group, channels // group, count)
        product = np.matmul(matrix, columns).reshape(sizes[0], out_channels, taps, *sizes[1:])
        col2im_add(product, y[batch], geometry, tuple(parts))


def col2im_add(
    columns: Array, y: Array, geometry: WindowGeometry, parts: Slices | None = None
) -> None:
    """Add columns (batch, channels, taps, positions...) to what each tap reads of y."""
    for tap, outs, ins in geometry.taps(parts):
        y[:, :, *ins] += columns[:, :, tap][:, :, *outs]


def add_bias(y: Array, bias: Array | None) -> Array:
    """Add a bias per channel to y, in place."""
    if bias is not None:
        y += bias.reshape(-1, *(1,) * (y.ndim - 2)).astype(y.dtype, copy=False)
    return y

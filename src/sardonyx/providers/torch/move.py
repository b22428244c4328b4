"""Ops that move elements: Transpose, Concat, Split, Slice, Tile, Pad, DepthToSpace and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from sardonyx.errors import InvalidArgument
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.arrays import Array, as_ints
from sardonyx.ops.inference import axes_of
from sardonyx.ops.sizes import slice_range
from sardonyx.providers.torch.dtypes import CARRIERS, MOVED, via_carrier
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels

Shapes = tuple[tuple[Any, ...], ...]  # by output; None for data-dependent sizes


def transpose(x: Tensor, *, perm: Sequence[int] | None) -> Tensor:
    """Return a view with permuted axes."""
    return x.permute(tuple(perm) if perm is not None else tuple(reversed(range(x.ndim))))


def concat(*xs: Tensor, axis: int) -> Tensor:
    """Return tensors concatenated along an axis."""
    carrier = CARRIERS.get(xs[0].dtype)
    if carrier is None:
        return torch.cat(xs, axis)
    return torch.cat([x.view(carrier) for x in xs], axis).view(xs[0].dtype)


def split(
    x: Tensor, sizes: Array | None, *, axis: int, num_outputs: int | None, shapes: Shapes
) -> tuple[Tensor, ...]:
    """Return views of consecutive ranges of an axis."""
    lengths = [s[axis] for s in shapes] if sizes is None else sizes.tolist()
    if sum(lengths) != x.shape[axis] or min(lengths, default=0) < 0:
        raise InvalidArgument(f"lengths {tuple(lengths)} do not add up to {x.shape[axis]}")
    return tuple(x.split_with_sizes(lengths, axis))


@via_carrier
def slice_(
    x: Tensor, starts: Array, ends: Array, axes: Array | None, steps: Array | None
) -> Tensor:
    """Return a strided slice: a view unless a step is negative, which torch does not support."""
    first, last = starts.reshape(-1).tolist(), ends.reshape(-1).tolist()
    where = range(len(first)) if axes is None else axes_of(axes.reshape(-1).tolist(), x.ndim)
    by = [1] * len(first) if steps is None else steps.reshape(-1).tolist()
    if 0 in by:
        raise InvalidArgument(f"Slice steps by 0 in {tuple(by)}")
    ranges, flipped = [slice(None)] * x.ndim, []
    for axis, start, end, step in zip(where, first, last, by, strict=True):
        positions = slice_range(x.shape[axis], start, end, step)
        if not positions:
            ranges[axis] = slice(0, 0)
        elif step > 0:
            ranges[axis] = slice(positions.start, positions[-1] + 1, step)
        else:  # the same elements in ascending order, flipped afterwards
            ranges[axis] = slice(positions[-1], positions.start + 1, -step)
            flipped.append(axis)
    view = x[tuple(ranges)]
    return view.flip(flipped) if flipped else view


def pad(x: Tensor, pads: Array, value: Array | None, axes: Array | None, *, mode: bytes) -> Tensor:
    """Return the tensor padded, or cropped where pads are negative."""
    amounts = as_ints(pads)
    where = range(x.ndim) if axes is None else axes_of(as_ints(axes), x.ndim)
    if len(amounts) != 2 * len(where):
        raise InvalidArgument(f"pads has {len(amounts)} numbers for {len(where)} axes, two each")
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(where):
        widths[axis] = (amounts[i], amounts[i + len(where)])
    if mode == b"constant":
        return _pad_constant(x, widths, value)
    # Negative pads crop first: reflections start at the cropped edge.
    if min(amounts, default=0) < 0:
        sizes = zip(x.shape, widths, strict=True)
        x = x[tuple(slice(max(-b, 0), max(d + min(a, 0), 0)) for d, (b, a) in sizes)]
        widths = [(max(b, 0), max(a, 0)) for b, a in widths]
    if any(d == 0 and w != (0, 0) for d, w in zip(x.shape, widths, strict=True)):
        raise InvalidArgument(f"shape {tuple(x.shape)} has nothing to pad from by {amounts}")
    return _pad_from_input(x, widths, mode)


Widths = list[tuple[int, int]]


def _pad_constant(x: Tensor, widths: Widths, value: Array | None) -> Tensor:
    """Return the tensor padded with a value."""
    dtype, carrier = x.dtype, CARRIERS.get(x.dtype)
    if carrier is not None:
        x = x.view(carrier)
        if value is not None:
            value = np.ascontiguousarray(value).view(f"i{value.itemsize}")
    filler: Any = 0 if value is None else value.reshape(-1)[0]
    if value is not None:
        filler = filler.item() if value.dtype.kind in "fiubc" else float(filler)
    shape = [d + b + a for d, (b, a) in zip(x.shape, widths, strict=True)]
    if any(-b > d or -a > d for d, (b, a) in zip(x.shape, widths, strict=True)):
        return x.new_full(shape, filler).view(dtype)  # negative pads remove all elements
    # Not F.pad, whose value is a float and cannot represent all integers.
    y = torch.constant_pad_nd(x, [w for pair in reversed(widths) for w in pair], filler)
    return y if carrier is None else y.view(dtype)


_TORCH_PAD_MODES: Final = {b"reflect": "reflect", b"edge": "replicate"}


def _pad_from_input(x: Tensor, widths: Widths, mode: bytes) -> Tensor:
    """Return the tensor padded with its own elements: reflect, edge or wrap."""
    # F.pad has kernels for the spatial axes of floats; all else is a gather per axis.
    outer, inner = widths[:2], widths[2:]
    if (
        mode in _TORCH_PAD_MODES
        and x.is_floating_point()
        and x.dtype not in CARRIERS
        and 3 <= x.ndim <= 5
        and outer == [(0, 0)] * 2
        and (mode == b"edge" or all(max(w) < d for d, w in zip(x.shape[2:], inner, strict=True)))
        and x.numel()
    ):
        return F.pad(x, [w for pair in reversed(inner) for w in pair], _TORCH_PAD_MODES[mode])
    return _pad_by_index(x, widths, mode)


@via_carrier
def _pad_by_index(x: Tensor, widths: Widths, mode: bytes) -> Tensor:
    for axis, (before, after) in enumerate(widths):
        if before or after:
            size = x.shape[axis]
            index = torch.arange(-before, size + after, device=x.device)
            if mode == b"wrap":
                index = index.remainder(size)
            elif mode == b"edge" or size == 1:
                index = index.clamp(0, size - 1)
            else:  # reflection: a triangle wave with the period 2 * size - 2
                index = size - 1 - (index.remainder(2 * size - 2) - (size - 1)).abs()
            x = x.index_select(axis, index)
    return x


def depth_to_space(x: Tensor, *, blocksize: int, mode: bytes) -> Tensor:
    """Return channels rearranged to blocks of the image."""
    n, c, h, w = x.shape
    b, deep = blocksize, c // blocksize**2
    if mode == b"DCR":
        blocks = x.reshape(n, b, b, deep, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, deep, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, deep, h * b, w * b)


def space_to_depth(x: Tensor, *, blocksize: int, mode: bytes) -> Tensor:
    """Return blocks of the image rearranged to channels."""
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == b"DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.permute(order).reshape(n, c * b * b, h // b, w // b)


@via_carrier
def reverse_sequence(x: Tensor, lens: Tensor, *, batch_axis: int, time_axis: int) -> Tensor:
    """Return sequences with their first `lens` elements reversed."""
    steps = x.shape[time_axis]
    if lens.device.type == "cpu" and bool(((lens < 0) | (lens > steps)).any()):
        raise InvalidArgument(f"a sequence length in {lens.tolist()} is outside [0, {steps}]")
    time = torch.arange(steps, device=x.device)
    ends = lens.reshape(-1, 1)
    source = torch.where(time < ends, ends - 1 - time, time).clamp(0, max(steps - 1, 0))
    batch = torch.arange(x.shape[batch_axis], device=x.device)[:, None]
    return x[batch, source] if batch_axis == 0 else x[source.T, batch.T]


@via_carrier
def trilu(x: Tensor, k: Array | None, *, upper: int) -> Tensor:
    """Return the upper or lower triangle of matrices; zeros elsewhere."""
    far = x.shape[-1] + x.shape[-2]
    shift = 0 if k is None else min(max(int(k.reshape(-1)[0]), -far), far)
    return x.triu(shift) if upper else x.tril(shift)


def center_crop_pad(x: Tensor, target: Array, *, axes: Sequence[int] | None) -> Tensor:
    """Return the tensor cropped or zero-padded to sizes, around the center of each axis."""
    where = axes_of(range(x.ndim) if axes is None else axes, x.ndim)
    sizes = dict(zip(where, target.tolist(), strict=True))
    source, widths = [], []
    for axis, have in enumerate(x.shape):
        want = sizes.get(axis, have)
        kept = min(have, want)
        source.append(slice((have - kept) // 2, (have - kept) // 2 + kept))
        before = (want - kept) // 2
        widths.append((before, want - kept - before))
    return _pad_constant(x[tuple(source)], widths, None)


KERNELS: Final[TorchKernels] = {
    (ONNX, "Transpose"): TorchKernel(transpose, MOVED),
    (ONNX, "Concat"): TorchKernel(concat, MOVED),
    (ONNX, "Split"): TorchKernel(split, MOVED, host=(1,), sized=True),
    (ONNX, "Slice"): TorchKernel(slice_, MOVED, host=(1, 2, 3, 4)),
    (ONNX, "Tile"): TorchKernel(
        lambda x, repeats: x.repeat(repeats.tolist()) if x.ndim else x, MOVED, host=(1,)
    ),
    (ONNX, "Pad"): TorchKernel(pad, MOVED, host=(1, 2, 3)),
    (ONNX, "DepthToSpace"): TorchKernel(depth_to_space, MOVED),
    (ONNX, "SpaceToDepth"): TorchKernel(space_to_depth, MOVED),
    (ONNX, "ReverseSequence"): TorchKernel(reverse_sequence, MOVED),
    (ONNX, "Trilu"): TorchKernel(trilu, MOVED, host=(1,)),
    (ONNX, "CenterCropPad"): TorchKernel(center_crop_pad, MOVED, host=(1,)),
    (MICROSOFT, "UnfoldTensor"): TorchKernel(
        lambda x, dim, size, step: x.unfold(dim, size, step), MOVED
    ),
}

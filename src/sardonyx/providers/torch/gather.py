"""Gather and scatter ops.

An index out of range is an error on the CPU. On other devices a check would synchronize, and an
invalid index would abort the CUDA context: there indices wrap around.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.graph import Node
from sardonyx.graph.op import ONNX
from sardonyx.ops.arrays import Array, one_int
from sardonyx.providers.torch.dtypes import MOVED, via_carrier, wide
from sardonyx.providers.torch.kernel import PLAIN, TorchKernel, TorchKernels


def within(indices: Tensor, size: int, axis: int) -> Tensor:
    """Return non-negative indices, all inside of the axis."""
    if not indices.numel():
        return indices
    if size == 0:
        raise InvalidArgument(f"axis {axis} has no elements to gather")
    # Reading the extremes of a device tensor would synchronize.
    if indices.device.type == "cpu":
        low, high = (int(v) for v in torch.aminmax(indices))
        if low < -size or high >= size:
            wrong = low if low < -size else high
            raise InvalidArgument(f"index {wrong} is outside [{-size}, {size}) of axis {axis}")
        if low >= 0:
            return indices
    return indices.remainder(size)


def gather(x: Tensor, indices: Tensor | Array, *, axis: int) -> Tensor:
    """Return slices of an axis; a view for one constant index."""
    axis %= x.ndim
    if isinstance(indices, Tensor):
        return _gather_tensor(x, indices, axis)
    index, size = one_int(indices, "the index"), x.shape[axis]
    if not -size <= index < size:
        raise InvalidArgument(f"index {index} is outside [{-size}, {size}) of axis {axis}")
    # A view: select, with the axes of the index put back.
    part = x.select(axis, index)
    for _ in range(indices.ndim):
        part = part.unsqueeze(axis)
    return part


@via_carrier
def _gather_tensor(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    where = within(indices, x.shape[axis], axis)
    # index_select is much faster than advanced indexing.
    if where.ndim == 1:
        return x.index_select(axis, where)
    shape = (*x.shape[:axis], *where.shape, *x.shape[axis + 1 :])
    return x.index_select(axis, where.reshape(-1)).reshape(shape)


@via_carrier
def gather_elements(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """Return one element per index."""
    return x.gather(axis, within(indices, x.shape[axis], axis % x.ndim).long())


def _flat_rows(x: Tensor, indices: Tensor, batch_dims: int) -> tuple[Tensor, Tensor]:
    """Return data with its indexed axes merged to rows, and the row number of each index tuple."""
    width = indices.shape[-1]
    end = batch_dims + width
    if end > x.ndim:
        raise InvalidArgument(f"index tuples of {width} do not fit data of {tuple(x.shape)}")
    n_batches, sizes = math.prod(x.shape[:batch_dims]), x.shape[batch_dims:end]
    # Row-major index of each tuple, by Horner's scheme.
    row = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for i, size in enumerate(sizes):
        row = row * size + within(indices[..., i], size, batch_dims + i)
    if batch_dims:
        start = torch.arange(n_batches, device=x.device) * math.prod(sizes)
        row = row.reshape(n_batches, -1 if row.numel() else 0) + start[:, None]
    return x.reshape(n_batches * math.prod(sizes), *x.shape[end:]), row.reshape(-1)


@via_carrier
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int) -> Tensor:
    """Return slices at index tuples."""
    flat, row = _flat_rows(x, indices, batch_dims)
    return flat.index_select(0, row).reshape((*indices.shape[:-1], *flat.shape[1:]))


_REDUCTIONS: Final = {b"add": "sum", b"mul": "prod", b"max": "amax", b"min": "amin"}


@via_carrier
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: bytes
) -> Tensor:
    """Return a copy with one element written or reduced per index."""
    if not x.ndim:
        x, indices, updates = (v.reshape(1) for v in (x, indices, updates))
        return scatter_elements(x, indices, updates, axis=0, reduction=reduction).reshape(())
    where = within(indices, x.shape[axis], axis % x.ndim).long()
    if reduction == b"none":
        return x.scatter(axis, where, updates)
    return _reduced(x, axis, where, updates, reduction)


def _reduced(x: Tensor, axis: int, where: Tensor, updates: Tensor, reduction: bytes) -> Tensor:
    # 16-bit floats accumulate in float32.
    y = wide(x).scatter_reduce(axis, where, wide(updates), _REDUCTIONS[reduction])
    return y.to(x.dtype)


@via_carrier
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: bytes) -> Tensor:
    """Return a copy with slices written or reduced at index tuples."""
    expected = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
    if updates.shape != expected:
        shape = tuple(updates.shape)
        raise InvalidArgument(f"updates must have the shape {expected}, got {shape}")
    flat, row = _flat_rows(x, indices, 0)
    new = updates.reshape(len(row), *flat.shape[1:])
    if reduction == b"none":
        return flat.index_copy(0, row, new).reshape(x.shape)
    # scatter_reduce needs an index per element.
    inner = math.prod(flat.shape[1:])
    where = row[:, None].expand(-1, inner)
    flat, new = flat.reshape(-1, inner) if inner else flat, new.reshape(len(row), inner)
    return _reduced(flat, 0, where, new, reduction).reshape(x.shape) if inner else x


@via_carrier
def tensor_scatter(
    x: Tensor, update: Tensor, starts: Tensor | None, *, axis: int, mode: bytes
) -> Tensor:
    """Return a cache with entries written from a start index, one per batch entry."""
    axis %= x.ndim
    size, count = x.shape[axis], update.shape[axis]
    place = torch.arange(count, device=x.device).expand(x.shape[0], count)
    if starts is not None:
        place = place + starts.reshape(-1, 1)
    if mode == b"circular" and size:
        place = place.remainder(size)
    elif mode != b"circular" and place.device.type == "cpu" and place.numel():
        low, high = (int(v) for v in torch.aminmax(place))
        if low < 0 or high >= size:
            raise InvalidArgument(
                f"{count} entries from {low} on, up to {high}, do not fit into {size} of axis "
                f"{axis}"
            )
    else:  # a check would synchronize, and an index outside would abort the CUDA context
        place = place.clamp(0, max(size - 1, 0))
    shape = [x.shape[0], *(1,) * (x.ndim - 1)]
    shape[axis] = count
    return x.scatter(axis, place.reshape(shape).expand(update.shape), update)


def one_hot(indices: Tensor, depth: Array, values: Tensor, *, axis: int) -> Tensor:
    """Return vectors of the off value, with the on value at an index."""
    axis %= indices.ndim + 1
    count = one_int(depth, "depth")
    where = indices.long()
    # Negative indices count from the end; those outside of [-depth, depth) match no position.
    where = torch.where(where < 0, where + count, where).unsqueeze(axis)
    places = torch.arange(count, device=indices.device)
    places = places.reshape(-1, *(1,) * (indices.ndim - axis))
    return _chosen(values.reshape(-1), places == where)


@via_carrier
def _chosen(values: Tensor, on: Tensor) -> Tensor:
    return torch.where(on, values[1], values[0])


@via_carrier
def compress(x: Tensor, condition: Tensor, *, axis: int | None) -> Tensor:
    """Return the slices of an axis for which a condition holds."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    return x.index_select(axis, condition[: x.shape[axis]].nonzero().squeeze(1))


def _reduces(node: Node) -> str:
    """Return why updates cannot be reduced; empty if they can."""
    dtype = node.outputs[0].tensor.dtype
    if node.attrs["reduction"] == b"none" or dtype in PLAIN:
        return ""
    return f"torch writes {dtype} but does not add, multiply or compare it; cast to another type"


KERNELS: Final[TorchKernels] = {
    (ONNX, "Gather"): TorchKernel(gather, MOVED, numbers=(1,)),
    (ONNX, "GatherElements"): TorchKernel(gather_elements, MOVED),
    (ONNX, "GatherND"): TorchKernel(gather_nd, MOVED),
    (ONNX, "ScatterElements"): TorchKernel(scatter_elements, MOVED, refuses=_reduces),
    (ONNX, "ScatterND"): TorchKernel(scatter_nd, MOVED, refuses=_reduces),
    (ONNX, "TensorScatter"): TorchKernel(tensor_scatter, MOVED),
    (ONNX, "OneHot"): TorchKernel(one_hot, MOVED, host=(1,)),
    (ONNX, "Compress"): TorchKernel(compress, MOVED, syncs=True),
}

"""Ops that change shapes without a copy, and tensors computed from sizes alone."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.const import Const
from sardonyx.graph.dtype import BF16, F16, F32, F64, I16, I32, I64, by_numpy, by_onnx
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import ONNX
from sardonyx.ops.arrays import Array, as_ints
from sardonyx.ops.inference import axes_of
from sardonyx.ops.shape.standard import range_length, reshaped
from sardonyx.providers.torch.dtypes import FLOAT8_TYPES, MOVED, TORCH, as_tensor
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.move import Shapes


def reshape(x: Tensor, target: Array, *, allowzero: int, shapes: Shapes) -> Tensor:
    """Return the same elements in another shape."""
    # Sizes that inference knows need no arithmetic at run time.
    if None not in shapes[0]:
        return x.reshape(shapes[0])
    try:
        sizes: Any = reshaped(Scope(), tuple(x.shape), as_ints(target), allowzero)
    except ShapeError as error:
        raise InvalidArgument(error.what) from None
    return x.reshape(sizes)


def squeeze(x: Tensor, axes: Array | None, *, shapes: Shapes) -> Tensor:
    """Return the tensor without some axes of size 1."""
    if None not in shapes[0]:
        return x.reshape(shapes[0])
    gone = () if axes is None else axes_of(as_ints(axes), x.ndim)
    if any(x.shape[a] != 1 for a in gone):
        raise InvalidArgument(f"axes {gone} of {tuple(x.shape)} are squeezed, and not all are 1")
    return x.squeeze(gone)


def unsqueeze(x: Tensor, axes: Array, *, shapes: Shapes) -> Tensor:
    """Return the tensor with additional axes of size 1."""
    if None not in shapes[0]:
        return x.reshape(shapes[0])
    for axis in sorted(axes_of(as_ints(axes), len(shapes[0]))):
        x = x.unsqueeze(axis)
    return x


def expand(x: Tensor, target: Array, *, shapes: Shapes) -> Tensor:
    """Return the tensor repeated along axes of size 1: a view."""
    if None not in shapes[0]:
        return x.expand(shapes[0])
    try:
        return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(target.tolist())))
    except ValueError:
        raise InvalidArgument(f"{tuple(x.shape)} does not expand to {target.tolist()}") from None


def constant_of_shape(target: Array, *, value: Const | None) -> Tensor:
    """Return a tensor of one number, on torch's default device."""
    shape = tuple(target.tolist())
    if min(shape, default=0) < 0:
        raise InvalidArgument(f"the shape {shape} has a negative size")
    if value is None:
        return torch.zeros(shape, dtype=torch.float32)
    # torch.full has no float8 kernels: filled as bytes.
    number = as_tensor(value.read(), value.dtype).reshape(())
    if number.dtype.is_floating_point and number.dtype.itemsize == 1:
        made = torch.full(shape, number.view(torch.uint8).item(), dtype=torch.uint8)
        return made.view(number.dtype)
    return torch.full(shape, number.item(), dtype=number.dtype)


def eye_like(x: Tensor, *, dtype: int | None, k: int) -> Tensor:
    """Return a matrix with ones along a diagonal."""
    made = None if dtype is None else by_onnx(dtype)
    rows, columns = x.shape
    # Column minus row is the number of a diagonal.
    over = torch.arange(columns, device=x.device) - torch.arange(rows, device=x.device)[:, None]
    return (over == k).to(x.dtype if made is None else TORCH[made])


_RANGED: Final = frozenset((BF16, F64, F32, F16, I16, I32, I64))


def range_(start: Array, limit: Array, delta: Array, *, stash_type: int) -> Tensor:
    """Return an arithmetic progression, on torch's default device."""
    ours = by_numpy(start.dtype)
    assert ours is not None
    dtype = TORCH[ours]
    # The attribute stash_type asks for float32 arithmetic of 16-bit ranges.
    is_wide = stash_type == 1 and ours in (F16, BF16)
    kind = float if ours.is_float else int
    first, last, step = (kind(a.reshape(-1)[0]) for a in (start, limit, delta))
    if step == 0 or not (math.isfinite(last - first) and math.isfinite(step)):
        raise InvalidArgument(f"Range has no end from {first} to {last} by {step}")
    count = range_length(first, last, step)
    made = torch.arange(count, dtype=torch.float32 if is_wide else dtype)
    return made.mul_(step).add_(first).to(dtype)


KERNELS: Final[TorchKernels] = {
    (ONNX, "Reshape"): TorchKernel(reshape, MOVED, host=(1,), sized=True),
    (ONNX, "Flatten"): TorchKernel(lambda x, axis, shapes: x.reshape(shapes[0]), MOVED, sized=True),
    (ONNX, "Squeeze"): TorchKernel(squeeze, MOVED, host=(1,), sized=True),
    (ONNX, "Unsqueeze"): TorchKernel(unsqueeze, MOVED, host=(1,), sized=True),
    (ONNX, "Identity"): TorchKernel(lambda x: x, MOVED),
    (ONNX, "Expand"): TorchKernel(expand, MOVED, host=(1,), sized=True),
    (ONNX, "ConstantOfShape"): TorchKernel(constant_of_shape, MOVED, host=(0,)),
    (ONNX, "EyeLike"): TorchKernel(eye_like, MOVED - FLOAT8_TYPES),
    (ONNX, "Range"): TorchKernel(range_, _RANGED, host=(0, 1, 2)),
}

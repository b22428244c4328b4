"""Shapes: asking for them, changing them without a copy, and tensors made from sizes alone."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import BF16, F16, F32, F64, I16, I32, I64, by_numpy, by_onnx
from sardonyx.ops.rules import Array
from sardonyx.providers.torch.bits import EIGHTHS, MOVED
from sardonyx.providers.torch.dtypes import TORCH, as_tensor
from sardonyx.providers.torch.move import Shapes
from sardonyx.providers.torch.row import Row, Rows
from sardonyx.weights.const import Const


def shape(x: Tensor, *, start: int, end: int | None) -> Tensor:
    """The sizes, written by the device itself: an upload would wait for it."""
    sizes = tuple(x.shape)[start:end]
    if not sizes:
        return torch.empty(0, dtype=torch.int64, device=x.device)
    return torch.stack([torch.full((), n, dtype=torch.int64, device=x.device) for n in sizes])


def size(x: Tensor) -> Tensor:
    """The number of elements."""
    return torch.full((), x.numel(), dtype=torch.int64, device=x.device)


def reshape(x: Tensor, target: Array, *, allowzero: int, shapes: Shapes) -> Tensor:
    """The same elements in another shape."""
    return x.reshape(shapes[0])


def flatten(x: Tensor, *, axis: int, shapes: Shapes) -> Tensor:
    """The same elements as a matrix."""
    return x.reshape(shapes[0])


def squeeze(x: Tensor, axes: Array | None, *, shapes: Shapes) -> Tensor:
    """Without axes of size 1, or with more of them."""
    return x.reshape(shapes[0])


def identity(x: Tensor) -> Tensor:
    """The tensor itself."""
    return x


def expand(x: Tensor, target: Array, *, shapes: Shapes) -> Tensor:
    """Repeated along axes of size 1: a view."""
    return x.expand(shapes[0])


def constant_of_shape(target: Array, *, value: Const | None, shapes: Shapes) -> Tensor:
    """One number everywhere, on the device that torch makes new tensors on."""
    if value is None:
        return torch.zeros(shapes[0], dtype=torch.float32)
    number = as_tensor(value.read(), value.dtype).reshape(())
    if number.dtype.is_floating_point and number.dtype.itemsize == 1:
        made = torch.full(shapes[0], number.view(torch.uint8).item(), dtype=torch.uint8)
        return made.view(number.dtype)
    return torch.full(shapes[0], number.item(), dtype=number.dtype)


def eye_like(x: Tensor, *, dtype: int | None, k: int) -> Tensor:
    """Ones along a diagonal."""
    made = None if dtype is None else by_onnx(dtype)
    rows, columns = x.shape
    over = torch.arange(columns, device=x.device) - torch.arange(rows, device=x.device)[:, None]
    return (over == k).to(x.dtype if made is None else TORCH[made])


_RANGED: Final = frozenset((BF16, F64, F32, F16, I16, I32, I64))


def range_(start: Array, limit: Array, delta: Array, *, stash_type: int, shapes: Shapes) -> Tensor:
    """Numbers from start on, each by delta more, on the device that torch makes new tensors on."""
    ours = by_numpy(start.dtype)
    assert ours is not None
    dtype = TORCH[ours]
    is_wide = stash_type == 1 and ours in (F16, BF16)
    kind = float if ours.is_float else int
    first, step = (kind(a.reshape(-1)[0]) for a in (start, delta))
    count = torch.arange(shapes[0][0], dtype=torch.float32 if is_wide else dtype)
    return count.mul_(step).add_(first).to(dtype)


ROWS: Final[Rows] = {
    ("", "Shape"): Row(shape, MOVED),
    ("", "Size"): Row(size, MOVED),
    ("", "Reshape"): Row(reshape, MOVED, host=(1,), sized=True),
    ("", "Flatten"): Row(flatten, MOVED, sized=True),
    ("", "Squeeze"): Row(squeeze, MOVED, host=(1,), sized=True),
    ("", "Unsqueeze"): Row(squeeze, MOVED, host=(1,), sized=True),
    ("", "Identity"): Row(identity, MOVED),
    ("", "Expand"): Row(expand, MOVED, host=(1,), sized=True),
    ("", "ConstantOfShape"): Row(constant_of_shape, MOVED, host=(0,), sized=True),
    ("", "EyeLike"): Row(eye_like, MOVED - EIGHTHS),
    ("", "Range"): Row(range_, _RANGED, host=(0, 1, 2), sized=True),
}

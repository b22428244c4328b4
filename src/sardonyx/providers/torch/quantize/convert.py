"""Between real numbers and numbers in few bits: one scale for all, per axis, or per block."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import BF16, F16, F32, I8, I16, I32, U8, U16, by_name, by_onnx
from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.quantize import convert_contrib as microsoft
from sardonyx.ops.quantize.convert import dequantize as dequantize_op
from sardonyx.ops.quantize.convert import quantize as quantize_op
from sardonyx.providers.torch.dtypes import TORCH
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels

BYTES: Final = frozenset((I8, U8))
_FLOAT8: Final = frozenset(by_name(n) for n in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"))
_PARTS: Final = frozenset(by_name(n) for n in ("i4", "u4", "i2", "u2"))  # one to a byte here
_REAL: Final = frozenset((F32, F16, BF16))
_TYPES: Final = _REAL | BYTES | _FLOAT8 | _PARTS | {I16, U16, I32}


def to_quantized(steps: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Numbers of steps, moved by the zero point (if there is one) and brought into a type."""
    if dtype.is_floating_point:
        moved = steps if zero is None else steps + zero.to(steps.dtype)
        high = torch.finfo(dtype).max
        return moved.clamp(-high, high).to(dtype)
    moved = torch.round(steps)
    if zero is not None:
        moved = moved + zero.to(moved.dtype)
    info = torch.iinfo(dtype)
    held = moved.nan_to_num(info.min).clamp(info.min, info.max)
    return held.int().to(dtype) if dtype is torch.uint16 else held.to(dtype)


def _aligned(
    x: Tensor, rows: list[Tensor | None], axis: int, block: int
) -> tuple[Tensor, list[Tensor | None]]:
    """x, and what belongs to its parts, shaped so that they broadcast; x may get one axis more."""
    if all(r is None or r.numel() == 1 for r in rows):
        return x, [None if r is None else r.reshape(()) for r in rows]
    at = 0 if x.dim() == 1 else axis % x.dim()
    if not block:
        shape = (-1, *(1,) * (x.dim() - 1 - at))
        return x, [None if r is None else r.reshape(shape) for r in rows]
    size = x.shape[at]
    block = min(block, max(size, 1))
    if size % block:
        spread = (None if r is None else r.repeat_interleave(block, at) for r in rows)
        return x, [None if r is None else r.narrow(at, 0, size) for r in spread]
    split = x.reshape(*x.shape[:at], size // block, block, *x.shape[at + 1 :])
    return split, [None if r is None else r.unsqueeze(at + 1) for r in rows]


def quantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, **attrs: Any) -> Tensor:
    """x / scale, rounded and moved by the zero point."""
    asked = by_onnx(attrs["output_dtype"]) or U8
    dtype = TORCH[asked] if zero is None else zero.dtype
    values, (step, move) = _aligned(x, [scale, zero], attrs["axis"], attrs["block_size"])
    assert step is not None
    steps = _divide(values, step, attrs["precision"])
    return to_quantized(steps, move, dtype).view(x.shape)


def _divide(x: Tensor, scale: Tensor, precision: int) -> Tensor:
    """x / scale in float32, or rounded to the precision that was asked for."""
    asked = by_onnx(precision) if precision else None
    if asked is None:
        wide = torch.float32 if scale.is_floating_point() else torch.float64
        return x.to(wide) / scale.to(wide)
    kind = TORCH[asked]
    wide = torch.float64 if asked.bits == 64 else torch.float32
    quotient = x.to(kind).to(wide) / scale.to(kind).to(wide)
    return quotient.to(kind).to(wide)


def dequantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, **attrs: Any) -> Tensor:
    """(x - zero) * scale, in float32."""
    asked = by_onnx(attrs["output_dtype"]) if attrs["output_dtype"] else None
    dtype = scale.dtype if asked is None else TORCH[asked]
    values, (step, move) = _aligned(x, [scale, zero], attrs["axis"], attrs["block_size"])
    assert step is not None
    y = values.float()
    if move is not None:
        y = y - move.float()
    return (y * step.float()).to(dtype).view(x.shape)


def dynamic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The range of x, widened to hold 0, in 255 steps: as bytes, the step, the zero point."""
    low, scale = step_of(x)
    zero = to_quantized(-low / scale, None, torch.uint8)
    return to_quantized(x / scale, zero, torch.uint8), scale, zero


def step_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest number, at most 0, and the size of 1/255 of the range that holds all and 0."""
    low, high = torch.aminmax(x) if x.numel() else (x.new_zeros(()), x.new_zeros(()))
    low, high = low.clamp(max=0), high.clamp(min=0)
    # By a tensor: GPUs turn the division by a number into a product with its inverse.
    scale = (high - low) / torch.full_like(low, 255)
    return low, torch.where(high == low, 1, scale)


def _microsoft_quantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int | None
) -> Tensor:
    return quantize(x, scale, zero, **microsoft.standard_attrs(quantize_op, axis))


def _microsoft_dequantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int | None
) -> Tensor:
    return dequantize(x, scale, zero, **microsoft.standard_attrs(dequantize_op, axis))


def _unmade(node: Node) -> str:
    dtype = node.outputs[0].tensor.dtype
    if dtype in _PARTS:
        return f"torch stores no {dtype}: let its output be of 8 bits"
    if dtype.is_float and not node.attrs["saturate"]:
        return f"torch makes {dtype} with saturation only: set saturate to 1"
    return ""


KERNELS: Final[TorchKernels] = {
    (ONNX, "QuantizeLinear"): TorchKernel(quantize, _TYPES, refuses=_unmade),
    (ONNX, "DequantizeLinear"): TorchKernel(dequantize, _TYPES),
    (ONNX, "DynamicQuantizeLinear"): TorchKernel(dynamic, frozenset((F32, U8))),
    (MICROSOFT, "QuantizeLinear"): TorchKernel(_microsoft_quantize, _TYPES, refuses=_unmade),
    (MICROSOFT, "DequantizeLinear"): TorchKernel(_microsoft_dequantize, _TYPES),
}

"""QuantizeLinear and DequantizeLinear: per tensor, per axis or per block."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import BF16, F16, F32, I8, I16, I32, U8, U16, by_name, by_onnx
from sardonyx.graph.graph import Node
from sardonyx.graph.op import ONNX
from sardonyx.providers.torch.dtypes import TORCH
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels

BYTES: Final = frozenset((I8, U8))
_FLOAT8: Final = frozenset(by_name(n) for n in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"))
_SUB_BYTE: Final = frozenset(by_name(n) for n in ("i4", "u4", "i2", "u2"))  # one per byte
_REAL: Final = frozenset((F32, F16, BF16))
_TYPES: Final = _REAL | BYTES | _FLOAT8 | _SUB_BYTE | {I16, U16, I32}


def to_quantized(scaled: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return x / scale plus the zero point, rounded to even and saturated to a type."""
    if dtype.is_floating_point:
        shifted = scaled if zero is None else scaled + zero.to(scaled.dtype)
        high = torch.finfo(dtype).max
        return shifted.clamp(-high, high).to(dtype)
    shifted = torch.round(scaled)
    if zero is not None:
        shifted = shifted + zero.to(shifted.dtype)
    info = torch.iinfo(dtype)
    clamped = shifted.nan_to_num(info.min).clamp(info.min, info.max)
    return clamped.int().to(dtype) if dtype is torch.uint16 else clamped.to(dtype)


def _broadcastable(
    x: Tensor, parameters: list[Tensor | None], axis: int, block: int
) -> tuple[Tensor, list[Tensor | None]]:
    """Return x and its scales and zero points in shapes that broadcast; blocks become an axis."""
    if all(r is None or r.numel() == 1 for r in parameters):
        return x, [None if r is None else r.reshape(()) for r in parameters]
    at = 0 if x.dim() == 1 else axis % x.dim()
    if not block:
        shape = (-1, *(1,) * (x.dim() - 1 - at))
        return x, [None if r is None else r.reshape(shape) for r in parameters]
    size = x.shape[at]
    block = min(block, max(size, 1))
    if size % block:
        expanded = (None if r is None else r.repeat_interleave(block, at) for r in parameters)
        return x, [None if r is None else r.narrow(at, 0, size) for r in expanded]
    split = x.reshape(*x.shape[:at], size // block, block, *x.shape[at + 1 :])
    return split, [None if r is None else r.unsqueeze(at + 1) for r in parameters]


def quantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, **attrs: Any) -> Tensor:
    """Return x / scale + zero, rounded and saturated."""
    output_type = by_onnx(attrs["output_dtype"]) or U8
    dtype = TORCH[output_type] if zero is None else zero.dtype
    values, (scales, zeros) = _broadcastable(x, [scale, zero], attrs["axis"], attrs["block_size"])
    assert scales is not None
    scaled = _divide(values, scales, attrs["precision"])
    return to_quantized(scaled, zeros, dtype).view(x.shape)


def _divide(x: Tensor, scale: Tensor, precision: int) -> Tensor:
    """Return x / scale in float32, or rounded to the type of the attribute `precision`."""
    requested = by_onnx(precision) if precision else None
    if requested is None:
        wide = torch.float32 if scale.is_floating_point() else torch.float64
        return x.to(wide) / scale.to(wide)
    kind = TORCH[requested]
    wide = torch.float64 if requested.bits == 64 else torch.float32
    quotient = x.to(kind).to(wide) / scale.to(kind).to(wide)
    return quotient.to(kind).to(wide)


def dequantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, **attrs: Any) -> Tensor:
    """Return (x - zero) * scale, computed in float32."""
    requested = by_onnx(attrs["output_dtype"]) if attrs["output_dtype"] else None
    dtype = scale.dtype if requested is None else TORCH[requested]
    values, (scales, zeros) = _broadcastable(x, [scale, zero], attrs["axis"], attrs["block_size"])
    assert scales is not None
    y = values.float()
    if zeros is not None:
        y = y - zeros.float()
    return (y * scales.float()).to(dtype).view(x.shape)


def dynamic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x quantized to uint8, its scale and its zero point (DynamicQuantizeLinear)."""
    low, scale = dynamic_scale(x)
    zero = to_quantized(-low / scale, None, torch.uint8)
    return to_quantized(x / scale, zero, torch.uint8), scale, zero


def dynamic_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimum of x and 0, and 1/255 of the range of x and 0."""
    low, high = torch.aminmax(x) if x.numel() else (x.new_zeros(()), x.new_zeros(()))
    low, high = low.clamp(max=0), high.clamp(min=0)
    # Divided by a tensor: on GPUs torch multiplies by the inverse of a Python number.
    scale = (high - low) / torch.full_like(low, 255)
    return low, torch.where(high == low, 1, scale)


def _refuses_output(node: Node) -> str:
    dtype = node.outputs[0].tensor.dtype
    if dtype in _SUB_BYTE:
        return f"torch has no {dtype}: quantize to an 8-bit type"
    if dtype.is_float and not node.attrs["saturate"]:
        return f"torch converts to {dtype} with saturation only: set saturate to 1"
    return ""


KERNELS: Final[TorchKernels] = {
    (ONNX, "QuantizeLinear"): TorchKernel(quantize, _TYPES, refuses=_refuses_output),
    (ONNX, "DequantizeLinear"): TorchKernel(dequantize, _TYPES),
    (ONNX, "DynamicQuantizeLinear"): TorchKernel(dynamic, frozenset((F32, U8))),
}

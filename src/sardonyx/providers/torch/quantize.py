"""Quantization per tensor, axis or block; exact matmul and convolution of 8-bit integers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import BF16, F16, F32, I8, I16, I32, U8, U16, by_name, by_onnx
from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.arrays import filled
from sardonyx.ops.quantize.matmul_conv import MAX_BYTE_PRODUCT
from sardonyx.providers.torch.dtypes import TORCH, wide
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.sliding_window import spatial_only, torch_window

_BYTES: Final = frozenset((I8, U8))
_FLOAT8: Final = frozenset(by_name(n) for n in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"))
_SUB_BYTE: Final = frozenset(by_name(n) for n in ("i4", "u4", "i2", "u2"))  # one per byte
_REAL: Final = frozenset((F32, F16, BF16))
_CONVERTED: Final = _REAL | _BYTES | _FLOAT8 | _SUB_BYTE | {I16, U16, I32}


def to_quantized(scaled: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return x / scale plus the zero point, rounded to even and saturated to a type."""
    # float8: saturated, where torch's conversion of some types gives infinity or NaN.
    if dtype.is_floating_point:
        shifted = scaled
        if zero is not None:  # one of 0 keeps the sign of -0
            points = zero.to(scaled.dtype)
            shifted = torch.where(points == 0, scaled, scaled + points)
        high = torch.finfo(dtype).max
        return shifted.clamp(-high, high).to(dtype)
    # torch.round rounds half to even, as ONNX requires; the zero point is added after that.
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
    # A partial last block cannot be an axis.
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


_MAX_EXACT: Final = 1 << 24  # float32 represents all integers up to here
_MIN_ROWS, _SIZE_MULTIPLE = 17, 8  # requirements of torch._int_mm on CUDA
_SIGN: Final = 128  # uint8 - 128 is int8: flips the top bit


def exact_type(terms: int) -> torch.dtype:
    """Return the float type that sums so many products of bytes without rounding."""
    return torch.float32 if terms * MAX_BYTE_PRODUCT < _MAX_EXACT else torch.float64


def exact_matmul(a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    """Return (a - a_zero) (b - b_zero) exactly, in a float type or in int32.

    Zero points are scalars, or a column on the left and a row on the right.
    """
    if b.dim() == 2 and a.dim() > 1 and _fits_int_mm(a, b):
        return _int8_matmul(a, b, a_zero, b_zero)
    # Products of bytes are exact in floats as long as the sums are below 2^24 (or 2^53).
    kind = exact_type(a.shape[-1])
    return torch.matmul(_centered(a, a_zero, kind), _centered(b, b_zero, kind))


def _centered(x: Tensor, zero: Tensor | None, kind: torch.dtype) -> Tensor:
    wide = x.to(kind)
    return wide if zero is None else wide - zero.to(kind)


def _fits_int_mm(a: Tensor, b: Tensor) -> bool:
    """Return whether torch._int_mm accepts the operands, and int32 holds the corrected sums."""
    rows, (inner, columns) = math.prod(a.shape[:-1]), b.shape
    has_int_mm = a.device.type in ("cpu", "cuda")
    fits = (
        rows >= _MIN_ROWS
        and inner
        and columns
        and not inner % _SIZE_MULTIPLE
        and not columns % _SIZE_MULTIPLE
    )
    return bool(has_int_mm and fits and inner < 1 << 14)


def _int8_matmul(a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    """Return `exact_matmul` by an int8 matmul, corrected for zero points.

    sum((a - za) (b - zb)) = sum(a b) - za sum(b) - zb (sum(a) - za k)
    """
    left, a_shift = _signed(a.reshape(-1, a.shape[-1]), _row_zeros(a, a_zero))
    right, b_shift = _signed(b, b_zero)
    total = torch._int_mm(left, right)
    if a_shift is not None:
        total = total - a_shift * right.sum(0, dtype=torch.int32)
    if b_shift is not None:
        row_sums = left.sum(1, keepdim=True, dtype=torch.int32)
        total = total - b_shift * (
            row_sums if a_shift is None else row_sums - a_shift * a.shape[-1]
        )
    return total.view(*a.shape[:-1], b.shape[1])


def _row_zeros(a: Tensor, zero: Tensor | None) -> Tensor | None:
    """Return the zero points of the rows of batched matrices, as one column."""
    if zero is None or zero.numel() == 1:
        return None if zero is None else zero.reshape(())
    return zero.expand(*a.shape[:-1], 1).reshape(-1, 1)


def _signed(x: Tensor, zero: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return signed bytes, and their zero point in int32."""
    shift = None if zero is None else zero.int()
    if x.dtype is torch.int8:
        return x.contiguous(), shift
    zero_of_unsigned = torch.full((), -_SIGN, dtype=torch.int32, device=x.device)
    return (x ^ _SIGN).view(torch.int8), zero_of_unsigned if shift is None else shift - _SIGN


def _per_row(values: Tensor | None) -> Tensor | None:
    """Return one value per row of a left operand as a column; a single value as a scalar."""
    if values is None or values.numel() == 1:
        return None if values is None else values.reshape(())
    return values[:, None] if values.dim() == 1 else values


def _per_column(values: Tensor | None) -> Tensor | None:
    """Return one value per column unchanged; a single value as a scalar."""
    return values.reshape(()) if values is not None and values.numel() == 1 else values


def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """Return the matmul of bytes in int32, which wraps."""
    return _int32(exact_matmul(a, b, _per_row(a_zero), _per_column(b_zero)))


def _int32(total: Tensor) -> Tensor:
    return total.long().int() if total.is_floating_point() else total


def qlinear_matmul(*tensors: Tensor) -> Tensor:
    """Return the matmul of bytes, requantized to bytes."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = tensors
    total = exact_matmul(a, b, _per_row(a_zero), _per_column(b_zero))
    left, right = _per_row(a_scale), _per_column(b_scale)
    assert left is not None
    assert right is not None
    scale = left.float() * right.float() / y_scale.reshape(()).float()
    return to_quantized(total.float() * scale, y_zero.reshape(()), y_zero.dtype)


def exact_conv(
    x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, attrs: Mapping[str, Any]
) -> Tensor:
    """Return the exact sums of a convolution. Padding is the zero point, so 0 after centering.

    In float64 and rounded: float32 algorithms (Winograd, FFT) are not exact.
    """
    window = torch_window(w.shape[2:], x.shape[2:], attrs)
    path = window.path
    image = _centered(x, None if x_zero is None else x_zero.reshape(()), torch.float64)
    weights = _centered(w, _per_channel(w_zero, w.dim() - 1), torch.float64)
    image, none = window.padded(image), [0] * len(path.outs)
    y = torch.convolution(
        image, weights, None, path.strides, none, path.dilations, False, none, attrs["group"]
    )
    # The input may extend past the last window.
    inside = (slice(None), slice(None), *(slice(0, n) for n in path.outs))
    return torch.round(y[inside])


def _per_channel(values: Tensor | None, n_axes: int) -> Tensor | None:
    """Return one value per output channel, followed by so many axes of size 1."""
    if values is None or values.numel() == 1:
        return None if values is None else values.reshape(())
    return values.reshape(-1, *(1,) * n_axes)


def conv_integer(
    x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None, **attrs: Any
) -> Tensor:
    """Return the convolution of bytes in int32, which wraps."""
    return _int32(exact_conv(x, w, x_zero, w_zero, attrs))


def qlinear_conv(*tensors: Any, **attrs: Any) -> Tensor:
    """Return the convolution of bytes, requantized to bytes."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b = filled(tensors, 9)
    total = exact_conv(x, w, x_zero, w_zero, attrs)
    if b is not None:
        total = total + b.reshape(-1, *(1,) * (x.dim() - 2))
    w_scales = _per_channel(w_scale, x.dim() - 2)
    assert w_scales is not None
    scale = x_scale.reshape(()) * w_scales / y_scale.reshape(())
    return to_quantized(total.float() * scale, y_zero.reshape(()), y_zero.dtype)


def qgemm(*tensors: Any, transA: int, transB: int, alpha: float) -> Tensor:  # noqa: N803
    """Return alpha * a b + c of quantized bytes, dequantized or requantized."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = filled(tensors, 9)
    left, right = a.T if transA else a, b.T if transB else b
    total = exact_matmul(left, right, a_zero.reshape(()), _per_column(b_zero))
    if c is not None:  # int32, with the scale of the accumulators
        total = total.double() + c
    scale = a_scale.reshape(()) * alpha * b_scale
    if y_zero is None:
        y: Tensor = total.float() * scale
        return y
    scaled = total.float() * (scale / y_scale.reshape(()))
    return to_quantized(scaled, y_zero.reshape(()), y_zero.dtype)


def _dynamic_quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x as integer multiples of a scale (8-bit dynamic quantization), and the scale."""
    low, scale = dynamic_scale(x)
    zero = torch.round(-low / scale).clamp(0, 255)
    return (torch.round(x / scale) + zero).clamp(0, 255) - zero, scale


def dynamic_integer_matmul(x: Tensor, b: Tensor, zero: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the integer matmul of dynamically quantized x with bytes, and the scale of x."""
    codes, scale = _dynamic_quantize(x)
    kind = exact_type(x.shape[-1])
    return torch.matmul(codes.to(kind), _centered(b, zero, kind)).float(), scale


def dynamic_matmul(*tensors: Any) -> Tensor:
    """Return dynamically quantized floats times bytes, dequantized."""
    a, b, b_scale, zero, bias = filled(tensors, 5)
    total, a_scale = dynamic_integer_matmul(a, b, zero)
    y: Tensor = total * (a_scale * b_scale)
    return y if bias is None else y + bias


def matmul_to_float(*tensors: Any) -> Tensor:
    """Return the matmul of bytes, dequantized."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = filled(tensors, 7)
    if a_scale.numel() == 1:
        # Zero points of the left operand are per column of a, the axis that is summed.
        kind = exact_type(a.shape[-1])
        total = torch.matmul(_centered(a, a_zero, kind), _centered(b, b_zero, kind)).float()
        y = total * (wide(a_scale).reshape(()) * wide(b_scale))
    else:
        # Scales per column of a, the summed axis, cannot be applied to the result.
        left = _centered(a, a_zero, torch.float32) * wide(a_scale)
        right = _centered(b, b_zero, torch.float64)
        y = torch.matmul(left.double(), right).float() * wide(b_scale)
    return (y if bias is None else y + wide(bias)).to(a_scale.dtype)


_TYPES: Final = _BYTES | {F32, I32}
_FLOAT16: Final = frozenset((F16, BF16))


KERNELS: Final[TorchKernels] = {
    (ONNX, "QuantizeLinear"): TorchKernel(quantize, _CONVERTED, refuses=_refuses_output),
    (ONNX, "DequantizeLinear"): TorchKernel(dequantize, _CONVERTED),
    (ONNX, "DynamicQuantizeLinear"): TorchKernel(dynamic, frozenset((F32, U8))),
    (ONNX, "MatMulInteger"): TorchKernel(matmul_integer, _TYPES),
    (ONNX, "QLinearMatMul"): TorchKernel(qlinear_matmul, _TYPES | _FLOAT16),
    (ONNX, "ConvInteger"): TorchKernel(conv_integer, _TYPES, refuses=spatial_only),
    (ONNX, "QLinearConv"): TorchKernel(qlinear_conv, _TYPES, refuses=spatial_only),
    (MICROSOFT, "QGemm"): TorchKernel(qgemm, _TYPES),
    (MICROSOFT, "DynamicQuantizeMatMul"): TorchKernel(dynamic_matmul, _TYPES),
    (MICROSOFT, "MatMulIntegerToFloat"): TorchKernel(matmul_to_float, _TYPES | _FLOAT16),
}

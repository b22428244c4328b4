"""Products of bytes: exact sums, in integers where torch multiplies them, else in floats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from sardonyx.graph.dtype import BF16, F16, F32, I8, I32, U8
from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.quantize.matmul_conv import MAX_BYTE_PRODUCT
from sardonyx.ops.recurrent.standard import filled
from sardonyx.ops.sliding_window import window_geometry, window_of
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.precision import wide
from sardonyx.providers.torch.quantize.convert import step_of, to_quantized

_BYTES: Final = frozenset((I8, U8))


_EXACT: Final = 1 << 24  # float32 holds whole numbers up to here


_ROWS, _STEP = 17, 8  # torch's product of int8 wants so many rows, and such columns


_SIGN: Final = 128  # what makes a byte with a sign of one without


def exact_type(terms: int) -> torch.dtype:
    """The float type that sums so many products of bytes without rounding."""
    return torch.float32 if terms * MAX_BYTE_PRODUCT < _EXACT else torch.float64


def exact_matmul(a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    """(a - a_zero) (b - b_zero) in whole numbers, of a float type or of int32.

    Zero points are single numbers, or a column on the left and a row on the right.
    """
    if b.dim() == 2 and a.dim() > 1 and _is_for_integers(a, b):
        return _by_integers(a, b, a_zero, b_zero)
    kind = exact_type(a.shape[-1])
    return torch.matmul(_centred(a, a_zero, kind), _centred(b, b_zero, kind))


def _centred(x: Tensor, zero: Tensor | None, kind: torch.dtype) -> Tensor:
    wide = x.to(kind)
    return wide if zero is None else wide - zero.to(kind)


def _is_for_integers(a: Tensor, b: Tensor) -> bool:
    """Whether torch's product of int8 takes the operands, and its int32 holds what follows."""
    rows, (inner, columns) = math.prod(a.shape[:-1]), b.shape
    is_known = a.device.type in ("cpu", "cuda")
    fits = rows >= _ROWS and inner and columns and not inner % _STEP and not columns % _STEP
    return bool(is_known and fits and inner < 1 << 14)


def _by_integers(a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    """The same by a product of int8: zero points are taken off its sums."""
    left, a_move = _signed(a.reshape(-1, a.shape[-1]), _rows_of(a, a_zero))
    right, b_move = _signed(b, b_zero)
    total = torch._int_mm(left, right)
    if a_move is not None:
        total = total - a_move * right.sum(0, dtype=torch.int32)
    if b_move is not None:
        sums = left.sum(1, keepdim=True, dtype=torch.int32)
        total = total - b_move * (sums if a_move is None else sums - a_move * a.shape[-1])
    return total.view(*a.shape[:-1], b.shape[1])


def _rows_of(a: Tensor, zero: Tensor | None) -> Tensor | None:
    """Zero points of the rows of a stack, as one column."""
    if zero is None or zero.numel() == 1:
        return None if zero is None else zero.reshape(())
    return zero.expand(*a.shape[:-1], 1).reshape(-1, 1)


def _signed(x: Tensor, zero: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Bytes with a sign, and the zero point that goes with them as int32."""
    move = None if zero is None else zero.int()
    if x.dtype is torch.int8:
        return x.contiguous(), move
    held = torch.full((), -_SIGN, dtype=torch.int32, device=x.device)
    return (x ^ _SIGN).view(torch.int8), held if move is None else move - _SIGN


def _of_rows(row: Tensor | None) -> Tensor | None:
    """One number per row of a left operand, as a column."""
    if row is None or row.numel() == 1:
        return None if row is None else row.reshape(())
    return row[:, None] if row.dim() == 1 else row


def _single(row: Tensor | None) -> Tensor | None:
    """One number as such; what belongs to columns stays as it is."""
    return row.reshape(()) if row is not None and row.numel() == 1 else row


def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """The product of bytes in int32, which wraps around."""
    return _int32(exact_matmul(a, b, _of_rows(a_zero), _single(b_zero)))


def _int32(total: Tensor) -> Tensor:
    return total.long().int() if total.is_floating_point() else total


def qlinear_matmul(*tensors: Tensor) -> Tensor:
    """The product of bytes as bytes again."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = tensors
    total = exact_matmul(a, b, _of_rows(a_zero), _single(b_zero))
    left, right = _of_rows(a_scale), _single(b_scale)
    assert left is not None
    assert right is not None
    scale = left.float() * right.float() / y_scale.reshape(()).float()
    return to_quantized(total.float() * scale, y_zero.reshape(()), y_zero.dtype)


def exact_conv(
    x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, attrs: Mapping[str, Any]
) -> Tensor:
    """The exact sums of a convolution. Padding stands for the zero point, so it is zero here.

    In float64, and rounded: the ways that libraries convolve in float32 round on the way.
    """
    path = window_geometry(window_of(tuple(w.shape[2:]), attrs), tuple(x.shape[2:]))
    image = _centred(x, None if x_zero is None else x_zero.reshape(()), torch.float64)
    weights = _centred(w, _of_maps(w_zero, w.dim() - 1), torch.float64)
    ends = [
        max(0, (out - 1) * stride + (k - 1) * dilation + 1 - size - front)
        for out, stride, k, dilation, size, front in zip(
            path.outs, path.strides, path.kernel, path.dilations, path.ins, path.front, strict=True
        )
    ]
    pads = [p for pair in zip(path.front[::-1], ends[::-1], strict=True) for p in pair]
    image = F.pad(image, pads) if any(pads) else image
    none = [0] * len(ends)
    made = torch.convolution(
        image, weights, None, path.strides, none, path.dilations, False, none, attrs["group"]
    )
    kept = (slice(None), slice(None), *(slice(0, n) for n in path.outs))
    return torch.round(made[kept])


def _of_maps(row: Tensor | None, axes_behind: int) -> Tensor | None:
    """One number per feature map, before so many axes."""
    if row is None or row.numel() == 1:
        return None if row is None else row.reshape(())
    return row.reshape(-1, *(1,) * axes_behind)


def conv_integer(
    x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None, **attrs: Any
) -> Tensor:
    """The convolution of bytes in int32, which wraps around."""
    return _int32(exact_conv(x, w, x_zero, w_zero, attrs))


def qlinear_conv(*tensors: Any, channels_last: int = 0, **attrs: Any) -> Tensor:
    """The convolution of bytes as bytes again."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b = filled(tensors, 9)
    total = exact_conv(x.movedim(-1, 1) if channels_last else x, w, x_zero, w_zero, attrs)
    if b is not None:
        total = total + b.reshape(-1, *(1,) * (x.dim() - 2))
    per_map = _of_maps(w_scale, x.dim() - 2)
    assert per_map is not None
    scale = x_scale.reshape(()) * per_map / y_scale.reshape(())
    y = to_quantized(total.float() * scale, y_zero.reshape(()), y_zero.dtype)
    return y.movedim(1, -1) if channels_last else y


def _deep(node: Node) -> str:
    image = node.inputs[0]
    assert image is not None
    rank = image.tensor.rank
    return f"torch convolves along 1 to 3 axes, not along {rank - 2}" if rank > 5 else ""


def qgemm(*tensors: Any, transA: int, transB: int, alpha: float) -> Tensor:  # noqa: N803
    """A product of matrices of bytes, as numbers or as bytes again."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = filled(tensors, 9)
    left, right = a.T if transA else a, b.T if transB else b
    total = exact_matmul(left, right, a_zero.reshape(()), _single(b_zero))
    if c is not None:
        total = total.double() + c
    scale = a_scale.reshape(()) * alpha * b_scale
    if y_zero is None:
        made: Tensor = total.float() * scale
        return made
    steps = total.float() * (scale / y_scale.reshape(()))
    return to_quantized(steps, y_zero.reshape(()), y_zero.dtype)


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers as whole steps of 1/255 of their range, zero among them, and the size of a step."""
    low, step = step_of(x)
    zero = torch.round(-low / step).clamp(0, 255)
    return (torch.round(x / step) + zero).clamp(0, 255) - zero, step


def dynamic_product(x: Tensor, b: Tensor, zero: Tensor | None) -> tuple[Tensor, Tensor]:
    """The product of quantized numbers with bytes, in whole numbers, and the size of a step."""
    whole, step = _quantized(x)
    kind = exact_type(x.shape[-1])
    return torch.matmul(whole.to(kind), _centred(b, zero, kind)).float(), step


def dynamic_matmul(*tensors: Any) -> Tensor:
    """Numbers, quantized on the way, times bytes."""
    a, b, b_scale, zero, bias = filled(tensors, 5)
    total, step = dynamic_product(a, b, zero)
    y: Tensor = total * (step * b_scale)
    return y if bias is None else y + bias


def matmul_to_float(*tensors: Any) -> Tensor:
    """The product of bytes as the numbers that they stand for."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = filled(tensors, 7)
    if a_scale.numel() == 1:
        # Zero points of the left operand lie along its columns, which are summed.
        kind = exact_type(a.shape[-1])
        total = torch.matmul(_centred(a, a_zero, kind), _centred(b, b_zero, kind)).float()
        y = total * (wide(a_scale).reshape(()) * wide(b_scale))
    else:
        left = _centred(a, a_zero, torch.float32) * wide(a_scale)
        right = _centred(b, b_zero, torch.float64)
        y = torch.matmul(left.double(), right).float() * wide(b_scale)
    return (y if bias is None else y + wide(bias)).to(a_scale.dtype)


_TYPES: Final = _BYTES | {F32, I32}


_HALVES: Final = frozenset((F16, BF16))


KERNELS: Final[TorchKernels] = {
    (ONNX, "MatMulInteger"): TorchKernel(matmul_integer, _TYPES),
    (ONNX, "QLinearMatMul"): TorchKernel(qlinear_matmul, _TYPES | _HALVES),
    (ONNX, "ConvInteger"): TorchKernel(conv_integer, _TYPES, refuses=_deep),
    (ONNX, "QLinearConv"): TorchKernel(qlinear_conv, _TYPES, refuses=_deep),
    (MICROSOFT, "QLinearConv"): TorchKernel(qlinear_conv, _TYPES, refuses=_deep),
    (MICROSOFT, "QGemm"): TorchKernel(qgemm, _TYPES),
    (MICROSOFT, "DynamicQuantizeMatMul"): TorchKernel(dynamic_matmul, _TYPES),
    (MICROSOFT, "MatMulIntegerToFloat"): TorchKernel(matmul_to_float, _TYPES | _HALVES),
}

"""QLinear ops of com.microsoft: dequantize, compute in float32, quantize again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import BOOL, F32, I8, U8
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.quantize.qlinear import concat_inputs
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.pooling import average_pool
from sardonyx.providers.torch.quantize.convert import to_quantized

_TYPES: Final = frozenset((F32, I8, U8))


def _dequantize(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """Return dequantized bytes."""
    wide = x.float()
    return (wide if zero is None else wide - zero.reshape(()).float()) * scale.reshape(())


def _requantize(y: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return values quantized to a type."""
    scaled = (y / scale.reshape(())).float()
    return to_quantized(scaled, None if zero is None else zero.reshape(()), dtype)


def _binary(compute: Callable[[Tensor, Tensor], Tensor]) -> TorchKernel:
    def function(*tensors: Any) -> Tensor:
        a, a_scale, a_zero, b, b_scale, b_zero, c_scale, c_zero = tensors
        y = compute(_dequantize(a, a_scale, a_zero), _dequantize(b, b_scale, b_zero))
        return _requantize(y, c_scale, c_zero, a.dtype)

    return TorchKernel(function, _TYPES)


def _unary(compute: Callable[..., Tensor]) -> TorchKernel:
    def function(*tensors: Any, **attrs: Any) -> Tensor:
        x, x_scale, x_zero, y_scale, y_zero = tensors
        return _requantize(
            compute(_dequantize(x, x_scale, x_zero), **attrs), y_scale, y_zero, x.dtype
        )

    return TorchKernel(function, _TYPES)


def _leaky(x: Tensor, *, alpha: float) -> Tensor:
    return torch.where(x < 0, x * alpha, x)


def _softmax(x: Tensor, *, axis: int, opset: int) -> Tensor:
    """Softmax over one axis; up to opset 12, over all axes from that one on."""
    if not x.dim():
        return torch.ones_like(x)
    if opset >= 13:
        return torch.softmax(x, axis)
    at = axis % x.dim()
    return torch.softmax(x.flatten(at), -1).view(x.shape) if x.numel() else x


def _pooled(x: Tensor, *, channels_last: int) -> Tensor:
    axes = range(1, x.dim() - 1) if channels_last else range(2, x.dim())
    return x.mean(tuple(axes), keepdim=True, dtype=torch.float64)


def _mean(x: Tensor, *, axes: tuple[int, ...], keepdims: int) -> Tensor:
    every = tuple(axes) or tuple(range(x.dim()))
    return x.mean(every, keepdim=bool(keepdims), dtype=torch.float64)


def _average(x: Tensor, *, channels_last: int, **attrs: Any) -> Tensor:
    image = x.movedim(-1, 1) if channels_last else x
    y = average_pool(image, dilations=None, **attrs)
    return y.movedim(1, -1) if channels_last else y


def _concat(y_scale: Tensor, y_zero: Tensor, *inputs: Tensor, axis: int) -> Tensor:
    parts = [
        _requantize(_dequantize(*part), y_scale, y_zero, y_zero.dtype)
        for part in concat_inputs(inputs)
    ]
    return torch.cat(parts, axis)


def _where(*tensors: Tensor) -> Tensor:
    condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = tensors
    chosen = torch.where(
        condition, _dequantize(x, x_scale, x_zero), _dequantize(y, y_scale, y_zero)
    )
    return _requantize(chosen, z_scale, z_zero, x.dtype)


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "QLinearAdd"): _binary(torch.add),
    (MICROSOFT, "QLinearMul"): _binary(torch.mul),
    (MICROSOFT, "QLinearSigmoid"): _unary(torch.sigmoid),
    (MICROSOFT, "QLinearLeakyRelu"): _unary(_leaky),
    (MICROSOFT, "QLinearSoftmax"): _unary(_softmax),
    (MICROSOFT, "QLinearAveragePool"): _unary(_average),
    (MICROSOFT, "QLinearGlobalAveragePool"): _unary(_pooled),
    (MICROSOFT, "QLinearReduceMean"): _unary(_mean),
    (MICROSOFT, "QLinearConcat"): TorchKernel(_concat, _TYPES),
    (MICROSOFT, "QLinearWhere"): TorchKernel(_where, _TYPES | {BOOL}),
}

"""Weights quantized while the model is written: each is read once, and its result is not kept.

A model refers to the quantized tensor, its scales and zero points before any of them is known. All
three are computed when the first is written; the tensor itself precedes its scales in the file.
"""

from __future__ import annotations

import logging
import mmap
from typing import Any, Final

import numpy as np

from sardonyx.base.records import field, frozen, mutable
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import Const, Deferred, SourceConst
from sardonyx.quantization.arithmetic import (
    block_range,
    float8_scale,
    quantized,
    scale_and_zero_point,
    smallest_scale,
)
from sardonyx.quantization.quant_types import FLOAT8E4M3FN, INT8, INT16, dtype_of, typed_limits

_logger = logging.getLogger(__name__)
_INT32_STEPS: Final = float(2**32 - 2)  # of a symmetric int32
_MARGIN: Final = 1.0001  # keeps a bias that just fits from overflowing by rounding


def release(const: Const) -> None:
    """Let the pages of a mapped weight go, which is not read again."""
    if isinstance(const, SourceConst):
        const.source.advise(mmap.MADV_DONTNEED, const.offset, const.length)


@frozen
class WeightScheme:
    """How a weight is quantized; `channels` has overrides, one for all channels or one for each."""

    number: int  # of the type in TensorProto.DataType
    symmetric: bool
    axis: int | None = None
    block_size: int = 0  # along `axis`; 0: one scale per tensor or channel
    reduce_range: bool = False
    min_real_range: float | None = None
    channels: tuple[dict[str, Any], ...] = ()


@frozen
class _Bias:
    const: Const
    input_scale: float


@mutable(eq=False)
class QuantizedWeight:
    """A weight that is quantized when its bytes are needed."""

    source: Const
    scheme: WeightScheme
    _biases: list[_Bias] = field(default_factory=list)
    _params: tuple[Array, Array] | None = None  # zero points and scales

    @property
    def params_shape(self) -> tuple[int, ...]:
        """The shape of the scales and zero points."""
        axis, shape, block = self.scheme.axis, self.source.shape, self.scheme.block_size
        if axis is None:
            return ()
        if not block:
            return (shape[axis],)
        return tuple(-(-d // block) if i == axis else d for i, d in enumerate(shape))

    @property
    def tensor(self) -> Deferred:
        """The quantized tensor."""
        return Deferred(dtype_of(self.scheme.number), self.source.shape, self.quantize)

    @property
    def scale(self) -> Deferred:
        """The scales."""
        make = lambda: self.params()[1]  # noqa: E731
        return Deferred(self.source.dtype, self.params_shape, make, self.source.is_small)

    @property
    def zero_point(self) -> Deferred:
        """The zero points."""
        number = dtype_of(self.scheme.number)
        make = lambda: self.params()[0]  # noqa: E731
        return Deferred(number, self.params_shape, make, self.source.is_small)

    def add_bias(self, const: Const, input_scale: float) -> None:
        """Keep the scales large enough for an int32 bias of scale `input_scale` times theirs."""
        if self.scheme.number in (INT8, INT16):
            self._biases.append(_Bias(const, input_scale))

    def params(self) -> tuple[Array, Array]:
        """Return zero points and scales."""
        return self._params or self._computed(self.source.view())

    def quantize(self) -> Array:
        """Return the quantized tensor."""
        values = self.source.view()
        zero_point, scale = self._params or self._computed(values)
        axis, block = self.scheme.axis, self.scheme.block_size
        if axis is not None and block:
            count = values.shape[axis]
            scale = np.repeat(scale, block, axis)
            zero_point = np.repeat(zero_point, block, axis)
            kept = tuple(slice(count) if i == axis else slice(None) for i in range(values.ndim))
            scale, zero_point = scale[kept], zero_point[kept]
        elif axis is not None:
            shape = [-1 if i == axis else 1 for i in range(values.ndim)]
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
        result = quantized(self.scheme.number, values, scale, zero_point)
        release(self.source)
        if self.scheme.number == FLOAT8E4M3FN and np.isnan(result.astype(np.float32)).any():
            raise InvalidArgument("a weight that is quantized to float8 has NaN")
        return result

    def _computed(self, values: Array) -> tuple[Array, Array]:
        zero_point, scale = weight_params(values, self.scheme)
        for bias in self._biases:
            scale = _raised(scale, zero_point, bias)
        self._params = zero_point, scale
        return self._params


def weight_params(values: Array, scheme: WeightScheme) -> tuple[Array, Array]:
    """Return zero points and scales of a weight."""
    channels = scheme.channels
    if channels and "scale" in channels[0] and "zero_point" in channels[0]:
        return _given(values, scheme)
    if scheme.axis is not None and scheme.block_size:
        return _block_params(values, scheme)
    if scheme.number == FLOAT8E4M3FN:
        return _float8_params(values, scheme)
    rmin, rmax = _range(values, scheme)
    qmin, qmax = typed_limits(scheme.number, scheme.reduce_range, scheme.symmetric)
    if not values.size:
        return np.zeros(rmin.shape, qmin.dtype), np.ones(rmin.shape, values.dtype)
    return scale_and_zero_point(rmin, rmax, qmin, qmax, scheme.symmetric, scheme.min_real_range)


def _given(values: Array, scheme: WeightScheme) -> tuple[Array, Array]:
    """Return the zero points and scales of the overrides."""
    zero_points = [np.asarray(c["zero_point"]).astype(np.int64) for c in scheme.channels]
    scales = [np.asarray(c["scale"]) for c in scheme.channels]
    shape: tuple[int, ...] = ()
    if scheme.axis is not None:
        shape = (values.shape[scheme.axis],)
    zero_point = np.broadcast_to(np.array(zero_points).reshape(-1), shape or (1,)).reshape(shape)
    scale = np.broadcast_to(np.array(scales).reshape(-1), shape or (1,)).reshape(shape)
    return zero_point.astype(dtype_of(scheme.number).np), scale.astype(values.dtype)


def _range(values: Array, scheme: WeightScheme) -> tuple[Array, Array]:
    """Return minimum and maximum of the tensor or of its channels, with overrides."""
    if not values.size:
        shape = () if scheme.axis is None else (values.shape[scheme.axis],)
        return np.zeros(shape, values.dtype), np.zeros(shape, values.dtype)
    others = None
    if scheme.axis is not None:
        others = tuple(i for i in range(values.ndim) if i != scheme.axis)
    rmin, rmax = np.array(values.min(axis=others)), np.array(values.max(axis=others))
    for i, channel in enumerate(scheme.channels):
        where: Any = i if scheme.axis is not None else ()
        if channel.get("rmin") is not None:
            rmin[where] = channel["rmin"]
        if channel.get("rmax") is not None:
            rmax[where] = channel["rmax"]
    return rmin, rmax


def _float8_params(values: Array, scheme: WeightScheme) -> tuple[Array, Array]:
    if scheme.reduce_range:
        raise NotImplementedError("reduce_range is not supported with float 8")
    if scheme.axis is None:
        return float8_scale(scheme.number, np.std(values))
    others = tuple(i for i in range(values.ndim) if i != scheme.axis)
    zero, scale = float8_scale(scheme.number, np.std(values, axis=others))
    return np.broadcast_to(zero, scale.shape), scale


def _block_params(values: Array, scheme: WeightScheme) -> tuple[Array, Array]:
    if values.ndim != 2:
        raise NotImplementedError(
            f"weights are quantized in blocks if their rank is 2, and this one has shape "
            f"{list(values.shape)}: quantize it per channel, or exclude its node"
        )
    assert scheme.axis is not None
    qmin, qmax = typed_limits(scheme.number, False, scheme.symmetric)
    low, high = float(qmin), float(qmax)
    rmin, rmax = block_range(values, scheme.axis, scheme.block_size)
    zero = np.array(0, values.dtype)
    rmin, rmax = np.minimum(rmin, zero), np.maximum(rmax, zero)
    if scheme.symmetric:
        rmax = np.maximum(-rmin, rmax)
        rmin = -rmax
    scale = ((rmax - rmin).astype(np.float64) / (high - low)).astype(values.dtype)
    is_empty = scale < smallest_scale(values.dtype)
    scale = np.where(is_empty, np.ones_like(scale), scale)
    if scheme.symmetric:
        return np.full(scale.shape, round((low + high) / 2)).astype(qmin.dtype), scale
    exact = np.round(low - rmin.astype(np.float64) / scale.astype(np.float64))
    return np.where(is_empty, 0, np.clip(exact, low, high)).astype(qmin.dtype), scale


def _raised(scale: Array, zero_point: Array, bias: _Bias) -> Array:
    """Return scales such that a bias of the input's scale times them fits into int32."""
    if not scale.size or scale.ndim > 1 or np.any(zero_point.astype(np.int32)):
        return scale
    values = np.abs(bias.const.read().astype(np.float64)).reshape(-1)
    if scale.ndim == 0:
        values = np.array(values.max(initial=0.0))
    elif values.shape != scale.shape:
        return scale
    smallest = _MARGIN * 2.0 * values / _INT32_STEPS
    now = bias.input_scale * scale.astype(np.float64)
    is_short = (now < smallest) & (now > 0)
    if not is_short.any():
        return scale
    _logger.info("the scale of a weight is increased so that its bias fits into int32")
    ratio = np.where(is_short, smallest / np.where(now > 0, now, 1.0), 1.0)
    return np.where(is_short, scale.astype(np.float64) * ratio, scale).astype(scale.dtype)


def quantized_bias(
    name: str,
    bias: Const,
    input_scale: Const,
    weight_scale: Const,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> tuple[Const, Const]:
    """Return a bias times beta in int32, and its scales: input times weight times alpha.

    With a scale per channel, the last axis of the result is that of the channels.
    """
    count, shape = weight_scale.count, bias.shape
    # The groups of a ConvTranspose share the scales of its weight.
    is_grouped = len(shape) == 1 and bias.count > count > 1
    repeats = bias.count // count if is_grouped else 1
    if count > 1:
        shape = np.broadcast_shapes(shape, (count * repeats,))

    def scales() -> Array:
        scale = np.asarray(input_scale.read() * weight_scale.read() * alpha)
        return np.tile(scale, repeats) if repeats > 1 else scale

    def values() -> Array:
        # Beyond int32 a bias is clipped.
        wide = np.broadcast_to(bias.read(), shape).astype(np.float64) * beta
        real = (wide / scales().astype(np.float64)).round()
        bounds = np.iinfo(np.int32)
        if (real < bounds.min).any() or (real > bounds.max).any():
            _logger.warning(
                "Quantized bias `%s` exceeds the range of a int32: its scale is too small", name
            )
        return np.clip(real, bounds.min, bounds.max).astype(np.int32)

    return (
        Deferred(dtype_of(6), shape, values),
        Deferred(bias.dtype, (count * repeats,), scales),
    )

"""Resize: torch's interpolation where its result is the same, else separable filters by axis.

Filter taps are computed on the device, because an upload would synchronize with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from sardonyx.graph.graph import Node
from sardonyx.graph.op import ONNX
from sardonyx.ops.arrays import Array
from sardonyx.ops.resize.filter import TRANSFORMS, AxisResize, ResizeMode
from sardonyx.ops.resize.standard import axis_resizes, mode_of, resized_axes
from sardonyx.ops.sample.interpolate import cubic_weights
from sardonyx.ops.sliding_window import Ints
from sardonyx.providers.torch.dtypes import CARRIERS, MOVED
from sardonyx.providers.torch.kernel import PLAIN, TorchKernel, TorchKernels
from sardonyx.providers.torch.sample import interpolable, to_type

AxisResizes = Mapping[int, AxisResize]  # by axis


def resize(
    x: Tensor, roi: Array | None, scales: Array | None, sizes: Array | None, **attrs: Any
) -> Tensor:
    """Return the tensor with some of its axes resized."""
    operands = (None if a is None else (a.tobytes(), a.dtype) for a in (roi, scales, sizes))
    resizes, mode = _axis_resizes(tuple(x.shape), tuple(operands), tuple(attrs.items()))
    if not resizes:
        return x
    # torch has one fused kernel; the separable filter is a gather and a sum per axis.
    if torch_mode := _torch_mode(x, resizes, mode):
        return _interpolate(x, resizes, *torch_mode)
    carrier = CARRIERS.get(x.dtype)
    if carrier is not None:
        return _resample(x.view(carrier), resizes, mode, attrs).view(x.dtype)
    return _resample(x, resizes, mode, attrs)


@lru_cache(maxsize=1024)
def _axis_resizes(
    shape: Ints, operands: tuple[Any, ...], items: tuple[Any, ...]
) -> tuple[AxisResizes, ResizeMode]:
    """Return the resize of each axis that changes, and the filter."""
    attrs = dict(items)
    arrays = tuple(None if g is None else np.frombuffer(*g) for g in operands)
    axes = resized_axes(len(shape), attrs)
    mode = mode_of(attrs)
    crops = mode.transform == b"tf_crop_and_resize"
    each = zip(axes, axis_resizes(shape, axes, arrays, attrs), strict=True)
    return {a: s for a, s in each if crops or s.size != s.out or s.scale != 1}, mode


_NAMES: Final = {
    (b"linear", 3): "linear",
    (b"linear", 4): "bilinear",
    (b"linear", 5): "trilinear",
    (b"cubic", 4): "bicubic",
}
_TORCH_CUBIC: Final = -0.75
# Modes in which output x of an axis that grows by an integer factor reads input x // factor.
_REPEATING: Final = (
    (b"asymmetric", b"floor"),
    (b"half_pixel", b"round_prefer_floor"),
    (b"half_pixel", b"round_prefer_ceil"),
    (b"tf_half_pixel_for_nn", b"floor"),
)


def _torch_mode(
    x: Tensor, resizes: AxisResizes, mode: ResizeMode
) -> tuple[str, bool | None] | None:
    """Return torch's interpolation mode and align_corners with the same result; None if none."""
    if not _is_interpolable(x, resizes, mode):
        return None
    if mode.mode == b"nearest":
        is_repeating = (mode.transform, mode.nearest) in _REPEATING
        is_integer = all(s.scale.is_integer() for s in resizes.values())
        return ("nearest", None) if is_repeating and is_integer else None
    name = _NAMES.get((mode.mode, x.ndim))
    if name is None or mode.exclude_outside:
        return None
    if mode.mode == b"cubic" and mode.cubic_a != _TORCH_CUBIC:
        return None
    if mode.transform == b"align_corners":
        return name, True
    is_half = mode.transform in (b"half_pixel", b"half_pixel_symmetric")
    is_single = any(s.out <= 1 for s in resizes.values())
    is_half |= mode.transform == b"pytorch_half_pixel" and not is_single
    return (name, False) if is_half else None


def _is_interpolable(x: Tensor, resizes: AxisResizes, mode: ResizeMode) -> bool:
    """Return whether torch's interpolation accepts the tensor and its resizes axes."""
    is_batch_of_images = min(resizes) >= 2 and 3 <= x.ndim <= 5 and all(x.shape)
    is_real = x.is_floating_point() and x.dtype not in CARRIERS
    is_exact = all(s.out == s.resized for s in resizes.values())
    return is_batch_of_images and is_real and not mode.antialias and is_exact


def _interpolate(x: Tensor, resizes: AxisResizes, name: str, corners: bool | None) -> Tensor:
    outs = [resizes[i].out if i in resizes else x.shape[i] for i in range(2, x.ndim)]
    return F.interpolate(x, size=outs, mode=name, align_corners=corners)


def _resample(
    x: Tensor, resizes: AxisResizes, mode: ResizeMode, attrs: Mapping[str, Any]
) -> Tensor:
    is_nearest = mode.mode == b"nearest"
    y = x if is_nearest else interpolable(x)
    # Shrinking axes first, so that later passes have fewer elements.
    for axis in sorted(resizes, key=lambda a: resizes[a].out / max(1, resizes[a].size)):
        y = _resample_axis(y, axis, resizes[axis], mode)
    if mode.transform == b"tf_crop_and_resize":
        y = _extrapolate(y, resizes, mode, attrs["extrapolation_value"])
    rounds = mode.antialias or mode.mode == b"cubic"
    return y.to(x.dtype) if is_nearest else to_type(y, x.dtype, rounds=rounds)


def _resample_axis(x: Tensor, axis: int, s: AxisResize, mode: ResizeMode) -> Tensor:
    """Return the tensor with one axis resampled."""
    position = _positions(s, mode, x.device)
    if mode.mode == b"nearest":
        return x.index_select(axis, _ROUNDINGS[mode.nearest](position).long().clamp(0, s.size - 1))
    low = position.floor()
    first, weights = _weights(position - low, s, mode)
    taps = torch.arange(len(weights), device=x.device)[:, None]
    # Taps outside repeat the edge, unless they are excluded and the weights renormalized.
    index = low.long() + first + taps
    if mode.exclude_outside:
        weights = torch.where((index >= 0) & (index < s.size), weights, 0)
        weights = weights / weights.sum(0)
    read = x.index_select(axis, index.clamp(0, s.size - 1).reshape(-1))
    read = read.reshape(*x.shape[:axis], len(weights), s.out, *x.shape[axis + 1 :])
    shape = (len(weights), s.out, *(1,) * (x.ndim - 1 - axis))
    return (read * weights.to(x.dtype).reshape(shape)).sum(axis)


_ROUNDINGS: Final[dict[bytes, Callable[[Tensor], Tensor]]] = {
    b"round_prefer_floor": lambda x: (x - 0.5).ceil(),
    b"round_prefer_ceil": lambda x: (x + 0.5).floor(),
    b"floor": torch.floor,
    b"ceil": torch.ceil,
}


def _positions(s: AxisResize, mode: ResizeMode, device: torch.device) -> Tensor:
    """Return the input position of every output."""
    # Nearest neighbours depend on ties, which are decided in float32, the type of scales.
    kind = torch.float32 if mode.mode == b"nearest" else torch.float64
    outputs = torch.arange(s.out, dtype=kind, device=device)
    position: Tensor = TRANSFORMS[mode.transform](outputs, s)
    return position.clamp(-(2.0**40), 2.0**40)


def _weights(part: Tensor, s: AxisResize, mode: ResizeMode) -> tuple[int, Tensor]:
    """Return the first tap, relative to the element before each position, and the weights."""
    if mode.antialias and s.scale < 1:
        return _widened_filter(part, s.scale, mode)
    if mode.mode == b"linear":
        return 0, torch.stack((1 - part, part))
    return -1, torch.stack(_cubic(part, mode.cubic_a))


def _cubic(part: Tensor, a: float) -> list[Tensor]:
    weights: Any = cubic_weights(part, a)  # type: ignore[arg-type]  # only arithmetic
    return list(weights)


def _widened_filter(part: Tensor, scale: float, mode: ResizeMode) -> tuple[int, Tensor]:
    """Return the filter widened by 1 / scale (antialiasing), so that every input counts."""
    reach = (1 if mode.mode == b"linear" else 2) / scale
    first, last = math.floor(-reach) + 1, math.ceil(reach)
    taps = torch.arange(first, last + 1, device=part.device)[:, None]
    distance = ((taps - part) * scale).abs()
    if mode.mode == b"linear":
        weights = (1 - distance).clamp(min=0)
    else:
        whole = distance.floor().clamp(max=2)
        far, near, _, _ = _cubic(distance - whole, mode.cubic_a)
        weights = torch.where(whole == 0, near, torch.where(whole == 1, far, 0))
    return first, weights / weights.sum(0)


def _extrapolate(y: Tensor, resizes: AxisResizes, mode: ResizeMode, value: float) -> Tensor:
    """Set outputs whose position is outside of the input to a value."""
    filler = value if y.is_floating_point() else int(value)
    for axis, s in resizes.items():
        position = _positions(s, mode, y.device)
        outside = (position < 0) | (position > s.size - 1)
        y = torch.where(outside.reshape(-1, *(1,) * (y.ndim - 1 - axis)), filler, y)
    return y


def _refuses_type(node: Node) -> str:
    """Return why a type cannot be resized; empty if it can."""
    dtype, attrs = node.outputs[0].tensor.dtype, node.attrs
    crops = attrs["coordinate_transformation_mode"] == b"tf_crop_and_resize"
    if dtype in PLAIN or (attrs["mode"] == b"nearest" and not crops):
        return ""
    return f"torch copies {dtype} but does not compute with it; cast to another type"


KERNELS: Final[TorchKernels] = {
    (ONNX, "Resize"): TorchKernel(resize, MOVED, host=(1, 2, 3), refuses=_refuses_type)
}

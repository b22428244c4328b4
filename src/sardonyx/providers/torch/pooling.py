"""Pools: the largest, the mean or the p-norm of windows, and of whole images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import I8, I64, U8
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.arrays import Array
from sardonyx.ops.pooling.standard import pool_window, unpooled_shape
from sardonyx.ops.sliding_window import Ints
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.move import Shapes
from sardonyx.providers.torch.precision import FLOAT16_TYPES, wide
from sardonyx.providers.torch.sliding_window import TorchWindow, spatial_only, torch_window

_MAX: Final[Sequence[Any]] = (None, F.max_pool1d, F.max_pool2d, F.max_pool3d)
_MEANS: Final[Sequence[Any]] = (None, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


def _slid(x: Tensor, attrs: dict[str, Any]) -> TorchWindow:
    return torch_window(tuple(attrs["kernel_shape"]), x.shape[2:], attrs)


def max_pool(x: Tensor, *, storage_order: int, shapes: Shapes, **attrs: Any) -> tuple[Tensor, ...]:
    """The largest of each window, and its place if asked for."""
    moved = _slid(x, attrs)
    with_places = len(shapes) > 1
    is_real = x.is_floating_point()
    image = x if is_real else x.float()
    padding: Any = moved.padding
    if not moved.pools:
        low = -math.inf if is_real else torch.iinfo(x.dtype).min
        image, padding = moved.padded(image, low), 0
    path, function = moved.path, _MAX[x.ndim - 2]
    is_ceil = moved.pools and moved.ceil_mode
    found = function(
        image, path.kernel, path.strides, padding, path.dilations, is_ceil, with_places
    )
    if not with_places:
        return (found if is_real else found.to(x.dtype),)
    y, place = found
    sides = tuple(image.shape[2:]), (0,) * len(path.outs) if moved.pools else path.front
    return y.to(x.dtype), _counted(place, x, sides, storage_order)


def _counted(place: Tensor, x: Tensor, sides: tuple[Ints, Ints], storage_order: int) -> Tensor:
    """Places in an image that may have been padded, as places in the whole of x."""
    sizes, (padded, front) = tuple(x.shape[2:]), sides
    if storage_order or padded != sizes:
        order = range(len(sizes)) if storage_order else reversed(range(len(sizes)))
        steps, step = [0] * len(sizes), 1
        for i in order:
            steps[i], step = step, step * sizes[i]
        total: Any = 0
        for i in reversed(range(len(sizes))):
            at = (place % padded[i] - front[i]).clamp(0, sizes[i] - 1)
            total, place = total + at * steps[i], place // padded[i]
        place = total
    images = torch.arange(math.prod(x.shape[:2]), device=x.device) * math.prod(sizes)
    return place + images.reshape(*x.shape[:2], *(1,) * len(sizes))


def _sums(x: Tensor, moved: TorchWindow) -> Tensor:
    """The sum of each window, axis by axis."""
    path = moved.path
    x = moved.padded(x)
    for i, (k, d, stride) in enumerate(
        zip(path.kernel, path.dilations, path.strides, strict=True), 2
    ):
        x = x.unfold(i, (k - 1) * d + 1, stride)[..., ::d].sum(-1)
    return x


def average_pool(x: Tensor, *, count_include_pad: int, **attrs: Any) -> Tensor:
    """The mean of each window."""
    moved = _slid(x, attrs)
    path = moved.path
    if moved.pools and all(d == 1 for d in path.dilations) and not _is_odd_volume(x, path.kernel):
        function, padding = _MEANS[x.ndim - 2], moved.padding
        y: Tensor = function(
            x, path.kernel, path.strides, padding, moved.ceil_mode, bool(count_include_pad)
        )
        return y
    value = wide(x)
    y = _sums(value, moved)
    for i in range(len(path.outs)):
        counts = _counts(value, moved, i, attrs if count_include_pad else None)
        y = y / counts.reshape(-1, *(1,) * (len(path.outs) - 1 - i))
    return y.to(x.dtype)


def _is_odd_volume(x: Tensor, kernel: Ints) -> bool:
    """Whether torch's mean of volumes does not take this: it is pickier than that of images."""
    if x.ndim != 5:
        return False
    is_half = x.dtype in FLOAT16_TYPES and x.device.type == "cpu"
    return is_half or any(k > n for k, n in zip(kernel, x.shape[2:], strict=True))


def _counts(x: Tensor, moved: TorchWindow, i: int, with_pads: dict[str, Any] | None) -> Tensor:
    """How many elements the windows along one axis hold."""
    path = moved.path
    window = None if with_pads is None else pool_window(x.ndim, with_pads)
    k, d, stride = path.kernel[i], path.dilations[i], path.strides[i]
    if window is not None and window.is_same:
        return x.new_full((path.outs[i],), k)
    start = torch.arange(path.outs[i], device=x.device) * stride - path.front[i]
    last = path.ins[i] + (0 if window is None else window.ends[i])
    inside = (last - start + d - 1).div(d, rounding_mode="floor").clamp(0, k)
    if window is None:  # taps before the input do not count
        inside = inside - (-start + d - 1).div(d, rounding_mode="floor").clamp(0, k)
    return inside.to(x.dtype)


def _power(x: Tensor, p: int) -> Tensor:
    return x.abs() if p == 1 else x * x if p == 2 else x.abs() ** p


def _root(total: Tensor, p: int) -> Tensor:
    return total if p == 1 else total.sqrt() if p == 2 else total ** (1 / p)


def lp_pool(x: Tensor, *, p: int, **attrs: Any) -> Tensor:
    """The p-norm of each window."""
    value = wide(x)
    return _root(_sums(_power(value, p), _slid(x, attrs)), p).to(x.dtype)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def global_max(x: Tensor) -> Tensor:
    """The largest of each image."""
    if x.ndim == 2:
        return x
    if not math.prod(x.shape[2:]):
        return x.new_full((*x.shape[:2], *(1,) * (x.ndim - 2)), -math.inf)
    return x.amax(_spatial(x), keepdim=True)


def global_average(x: Tensor) -> Tensor:
    """The mean of each image."""
    return x if x.ndim == 2 else x.mean(_spatial(x), keepdim=True)


def global_lp(x: Tensor, *, p: int) -> Tensor:
    """The p-norm of each image."""
    powers = _power(wide(x), p)
    total = powers if x.ndim == 2 else powers.sum(_spatial(x), keepdim=True)
    return _root(total, p).to(x.dtype)


def max_unpool(
    x: Tensor, indices: Tensor, output_shape: Array | None = None, **attrs: Any
) -> Tensor:
    """Numbers back at the places that a pool took them from; zeros elsewhere."""
    natural: Any = unpooled_shape(tuple(x.shape), attrs)
    count = math.prod(natural)
    place = indices.reshape(-1)
    if place.device.type == "cpu" and place.numel():
        low, high = (int(v) for v in torch.aminmax(place))
        if not 0 <= low <= high < count:
            raise InvalidArgument(f"indices reach from {low} to {high}, outside [0, {count})")
    place = place.clamp(0, max(count - 1, 0))
    whole = x.new_zeros(count).index_copy(0, place, x.reshape(-1)).reshape(natural)
    shape = natural if output_shape is None else tuple(output_shape.tolist())
    if shape == natural:
        return whole
    behind = [s - n for s, n in zip(shape, natural, strict=True)]
    if min(behind) < 0:
        raise InvalidArgument(f"output_shape {shape} has a size below {natural}")
    return F.pad(whole, [w for b in reversed(behind) for w in (0, b)])


def last(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """A pool of images whose channels come last: what it makes first, in that order again."""

    def run(x: Tensor, **attrs: Any) -> Tensor:
        return function(x.movedim(-1, 1), **attrs).movedim(1, -1)  # type: ignore[no-any-return]

    return run


def _max_alone(x: Tensor, *, storage_order: int = 0, **attrs: Any) -> Tensor:
    return max_pool(x, storage_order=storage_order, shapes=((),), **attrs)[0]


_MAXED: Final = REALS | {I8, U8}
KERNELS: Final[TorchKernels] = {
    (ONNX, "MaxPool"): TorchKernel(max_pool, _MAXED | {I64}, sized=True, refuses=spatial_only),
    (ONNX, "AveragePool"): TorchKernel(average_pool, REALS, refuses=spatial_only),
    (ONNX, "LpPool"): TorchKernel(lp_pool, REALS),
    (ONNX, "GlobalMaxPool"): TorchKernel(global_max, REALS),
    (ONNX, "GlobalAveragePool"): TorchKernel(global_average, REALS),
    (ONNX, "GlobalLpPool"): TorchKernel(global_lp, REALS),
    (ONNX, "MaxUnpool"): TorchKernel(max_unpool, REALS | {I64}, host=(2,)),
    (MICROSOFT, "NhwcMaxPool"): TorchKernel(last(_max_alone), _MAXED, refuses=spatial_only),
    (INTERNAL, "MaxPool"): TorchKernel(last(_max_alone), _MAXED, refuses=spatial_only),
    (INTERNAL, "AveragePool"): TorchKernel(last(average_pool), REALS, refuses=spatial_only),
    (INTERNAL, "LpPool"): TorchKernel(last(lp_pool), REALS),
    (INTERNAL, "GlobalMaxPool"): TorchKernel(last(global_max), REALS),
    (INTERNAL, "GlobalAveragePool"): TorchKernel(last(global_average), REALS),
    (INTERNAL, "GlobalLpPool"): TorchKernel(last(global_lp), REALS),
}

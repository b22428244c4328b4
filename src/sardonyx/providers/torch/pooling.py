"""Max, average and Lp pooling, of windows and global; MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import I8, I64, U8
from sardonyx.graph.op import INTERNAL, ONNX
from sardonyx.ops.arrays import Array
from sardonyx.ops.pooling.standard import pool_window, unpooled_shape
from sardonyx.ops.sliding_window import Ints
from sardonyx.providers.torch.dtypes import FLOAT16_TYPES, wide
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.move import Shapes
from sardonyx.providers.torch.sliding_window import TorchWindow, spatial_only, torch_window

_MAX: Final[Sequence[Any]] = (None, F.max_pool1d, F.max_pool2d, F.max_pool3d)
_MEANS: Final[Sequence[Any]] = (None, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


def _window(x: Tensor, attrs: dict[str, Any]) -> TorchWindow:
    return torch_window(tuple(attrs["kernel_shape"]), x.shape[2:], attrs)


def max_pool(x: Tensor, *, storage_order: int, shapes: Shapes, **attrs: Any) -> tuple[Tensor, ...]:
    """Return the maximum of each window, and its index if the node has that output."""
    window = _window(x, attrs)
    with_indices = len(shapes) > 1
    # torch pools floats only; 8-bit integers are exact in float32.
    is_real = x.is_floating_point()
    image = x if is_real else x.float()
    padding: Any = window.padding
    if not window.pools:
        low = -math.inf if is_real else torch.iinfo(x.dtype).min
        image, padding = window.padded(image, low), 0
    path, function = window.path, _MAX[x.ndim - 2]
    is_ceil = window.pools and window.ceil_mode
    result = function(
        image, path.kernel, path.strides, padding, path.dilations, is_ceil, with_indices
    )
    if not with_indices:
        return (result if is_real else result.to(x.dtype),)
    y, index = result
    sides = tuple(image.shape[2:]), (0,) * len(path.outs) if window.pools else path.front
    return y.to(x.dtype), _global_index(index, x, sides, storage_order)


def _global_index(index: Tensor, x: Tensor, sides: tuple[Ints, Ints], storage_order: int) -> Tensor:
    """Return indices into a perhaps padded image as indices into the whole of x, as ONNX counts."""
    # torch's indices count within one (padded) image, ONNX's within the whole tensor.
    sizes, (padded, front) = tuple(x.shape[2:]), sides
    if storage_order or padded != sizes:
        axes = range(len(sizes)) if storage_order else reversed(range(len(sizes)))
        strides, stride = [0] * len(sizes), 1
        for i in axes:
            strides[i], stride = stride, stride * sizes[i]
        total: Any = 0
        for i in reversed(range(len(sizes))):
            at = (index % padded[i] - front[i]).clamp(0, sizes[i] - 1)
            total, index = total + at * strides[i], index // padded[i]
        index = total
    images = torch.arange(math.prod(x.shape[:2]), device=x.device) * math.prod(sizes)
    return index + images.reshape(*x.shape[:2], *(1,) * len(sizes))


def _window_sums(x: Tensor, window: TorchWindow) -> Tensor:
    """Return the sum of each window, separably by axis."""
    path = window.path
    x = window.padded(x)
    for i, (k, d, stride) in enumerate(
        zip(path.kernel, path.dilations, path.strides, strict=True), 2
    ):
        x = x.unfold(i, (k - 1) * d + 1, stride)[..., ::d].sum(-1)
    return x


def average_pool(x: Tensor, *, count_include_pad: int, **attrs: Any) -> Tensor:
    """Return the mean of each window."""
    window = _window(x, attrs)
    path = window.path
    if window.pools and all(d == 1 for d in path.dilations) and not _is_odd_volume(x, path.kernel):
        function, padding = _MEANS[x.ndim - 2], window.padding
        y: Tensor = function(
            x, path.kernel, path.strides, padding, window.ceil_mode, bool(count_include_pad)
        )
        return y
    # Sums of windows divided by their element counts, separably by axis.
    value = wide(x)
    y = _window_sums(value, window)
    for i in range(len(path.outs)):
        counts = _counts(value, window, i, attrs if count_include_pad else None)
        y = y / counts.reshape(-1, *(1,) * (len(path.outs) - 1 - i))
    return y.to(x.dtype)


def _is_odd_volume(x: Tensor, kernel: Ints) -> bool:
    """Return whether avg_pool3d refuses the input; it has more restrictions than avg_pool2d."""
    if x.ndim != 5:
        return False
    is_half = x.dtype in FLOAT16_TYPES and x.device.type == "cpu"
    return is_half or any(k > n for k, n in zip(kernel, x.shape[2:], strict=True))


def _counts(x: Tensor, window: TorchWindow, i: int, with_pads: dict[str, Any] | None) -> Tensor:
    """Return the number of elements of the windows along one axis."""
    path = window.path
    padded = None if with_pads is None else pool_window(x.ndim, with_pads)
    k, d, stride = path.kernel[i], path.dilations[i], path.strides[i]
    if padded is not None and padded.is_same:
        return x.new_full((path.outs[i],), k)
    start = torch.arange(path.outs[i], device=x.device) * stride - path.front[i]
    last = path.ins[i] + (0 if padded is None else padded.ends[i])
    inside = (last - start + d - 1).div(d, rounding_mode="floor").clamp(0, k)
    if padded is None:  # leading padding does not count
        inside = inside - (-start + d - 1).div(d, rounding_mode="floor").clamp(0, k)
    return inside.to(x.dtype)


def _power(x: Tensor, p: int) -> Tensor:
    return x.abs() if p == 1 else x * x if p == 2 else x.abs() ** p


def _root(total: Tensor, p: int) -> Tensor:
    return total if p == 1 else total.sqrt() if p == 2 else total ** (1 / p)


def lp_pool(x: Tensor, *, p: int, **attrs: Any) -> Tensor:
    """Return the p-norm of each window."""
    value = wide(x)
    return _root(_window_sums(_power(value, p), _window(x, attrs)), p).to(x.dtype)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def global_max(x: Tensor) -> Tensor:
    """Return the maximum of each image."""
    if x.ndim == 2:
        return x
    if not math.prod(x.shape[2:]):
        return x.new_full((*x.shape[:2], *(1,) * (x.ndim - 2)), -math.inf)
    return x.amax(_spatial(x), keepdim=True)


def global_average(x: Tensor) -> Tensor:
    """Return the mean of each image."""
    return x if x.ndim == 2 else x.mean(_spatial(x), keepdim=True)


def global_lp(x: Tensor, *, p: int) -> Tensor:
    """Return the p-norm of each image."""
    powers = _power(wide(x), p)
    total = powers if x.ndim == 2 else powers.sum(_spatial(x), keepdim=True)
    return _root(total, p).to(x.dtype)


def channels_last(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Wrap a pooling function for channels-last input and output."""

    def run(x: Tensor, **attrs: Any) -> Tensor:
        return function(x.movedim(-1, 1), **attrs).movedim(1, -1)  # type: ignore[no-any-return]

    return run


def _max_alone(x: Tensor, *, storage_order: int = 0, **attrs: Any) -> Tensor:
    return max_pool(x, storage_order=storage_order, shapes=((),), **attrs)[0]


def _max_with_indices(x: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
    """Return maxima and indices of channels-last images."""
    results = max_pool(x.movedim(-1, 1), storage_order=0, shapes=((), ()), **attrs)
    return tuple(v.movedim(1, -1) for v in results)


def max_unpool(
    x: Tensor, indices: Tensor, output_shape: Array | None = None, **attrs: Any
) -> Tensor:
    """Return values at the indices of MaxPool; zeros elsewhere."""
    natural: Any = unpooled_shape(tuple(x.shape), attrs)
    count = math.prod(natural)
    index = indices.reshape(-1)
    if index.device.type == "cpu" and index.numel():
        low, high = (int(v) for v in torch.aminmax(index))
        if not 0 <= low <= high < count:
            raise InvalidArgument(f"indices reach from {low} to {high}, outside [0, {count})")
    # On a GPU, an index out of range would abort the context.
    index = index.clamp(0, max(count - 1, 0))
    whole = x.new_zeros(count).index_copy(0, index, x.reshape(-1)).reshape(natural)
    shape = natural if output_shape is None else tuple(output_shape.tolist())
    if shape == natural:
        return whole
    trailing = [s - n for s, n in zip(shape, natural, strict=True)]
    if min(trailing) < 0:
        raise InvalidArgument(f"output_shape {shape} has a size below {natural}")
    return F.pad(whole, [w for b in reversed(trailing) for w in (0, b)])


# Pooling by torch ops on any number of axes.
_REST: Final[dict[str, Callable[..., Tensor]]] = {
    "LpPool": lp_pool,
    "GlobalMaxPool": global_max,
    "GlobalAveragePool": global_average,
    "GlobalLpPool": global_lp,
}
_MAXED: Final = REALS | {I8, U8}
KERNELS: Final[TorchKernels] = {
    (ONNX, "MaxPool"): TorchKernel(max_pool, _MAXED | {I64}, sized=True, refuses=spatial_only),
    (ONNX, "AveragePool"): TorchKernel(average_pool, REALS, refuses=spatial_only),
    (ONNX, "MaxUnpool"): TorchKernel(max_unpool, REALS | {I64}, host=(2,)),
    **{(ONNX, name): TorchKernel(function, REALS) for name, function in _REST.items()},
    (INTERNAL, "MaxPool"): TorchKernel(channels_last(_max_alone), _MAXED, refuses=spatial_only),
    (INTERNAL, "IndexedMaxPool"): TorchKernel(
        _max_with_indices, REALS | {I64}, refuses=spatial_only
    ),
    (INTERNAL, "AveragePool"): TorchKernel(
        channels_last(average_pool), REALS, refuses=spatial_only
    ),
    (INTERNAL, "LpPool"): TorchKernel(channels_last(lp_pool), REALS),
}

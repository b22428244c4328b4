"""Sliding windows of convolutions and pooling as arguments of kernels."""

from __future__ import annotations

from sardonyx.graph.dim import Shape, Size, maximum
from sardonyx.ops.sliding_window import Window
from sardonyx.place.provider import No

MAX_SPATIAL = 3  # axes of a window


def window_ints(window: Window, spatial: Shape) -> tuple[Size, ...]:
    """Return kernel, strides, dilations and begin padding, along each spatial axis."""
    begins = begin_padding(window, spatial)
    return (*window.kernel, *window.strides, *window.dilations, *begins)


def begin_padding(window: Window, spatial: Shape) -> Shape:
    """Return the padding before the first element of each axis."""
    if not window.is_same:
        return window.begins
    return tuple(_same_padding(window, i, size) for i, size in enumerate(spatial))


def _same_padding(window: Window, i: int, size: Size) -> Size:
    """Return the begin padding of SAME_UPPER and SAME_LOWER: ceil(size / stride) outputs."""
    stride = window.strides[i]
    outs = (size + (stride - 1)) // stride
    total = maximum(0, (outs - 1) * stride + window.extents[i] - size)
    # An odd total pads one element more at the end (UPPER) or at the beginning (LOWER).
    return total // 2 if window.auto_pad == b"SAME_UPPER" else total - total // 2


def unsupported(window: Window) -> No | None:
    """Return why kernels do not support a window, or None if they do."""
    if len(window.kernel) > MAX_SPATIAL:
        return No(f"no kernel for {len(window.kernel)} spatial axes")
    if not all(isinstance(k, int) for k in window.kernel):
        return No("the size of the kernel is not known")
    return None

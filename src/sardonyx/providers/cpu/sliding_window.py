"""What kernels with sliding windows are told about them."""

from __future__ import annotations

from sardonyx.graph.dim import Shape, Size, maximum
from sardonyx.ops.sliding_window import Window
from sardonyx.place.provider import No

MAX_SPATIAL = 3


def window_ints(moved: Window, spatial: Shape) -> tuple[Size, ...]:
    """Kernel, strides, dilations and padding in front, along each spatial axis."""
    return (*moved.kernel, *moved.strides, *moved.dilations, *fronts(moved, spatial))


def fronts(moved: Window, spatial: Shape) -> Shape:
    """Padding before the first element of each axis."""
    if not moved.is_same:
        return moved.begins
    return tuple(_same_front(moved, i, size) for i, size in enumerate(spatial))


def _same_front(moved: Window, i: int, size: Size) -> Size:
    stride = moved.strides[i]
    outs = (size + (stride - 1)) // stride
    total = maximum(0, (outs - 1) * stride + moved.extents[i] - size)
    return total // 2 if moved.auto_pad == b"SAME_UPPER" else total - total // 2


def unfit(moved: Window) -> No | None:
    """Why kernels cannot take a window."""
    if len(moved.kernel) > MAX_SPATIAL:
        return No(f"no kernel for {len(moved.kernel)} spatial axes")
    if not all(isinstance(k, int) for k in moved.kernel):
        return No("the size of the kernel is not known")
    return None

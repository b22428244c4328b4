"""Sliding windows of convolution and pooling, in terms of torch's padding parameters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Node
from sardonyx.ops.sliding_window import Ints, WindowGeometry, window_geometry, window_of

MAX_SPATIAL: Final = 3  # spatial axes of torch's convolution and pooling


@frozen
class TorchWindow:
    """A window on an input of known size, as torch's arguments."""

    path: WindowGeometry
    padding: Ints | None  # symmetric padding by axis; None if the two sides differ
    margins: list[int]  # explicit padding for F.pad, up to the end of the last window
    pools: bool  # whether torch's pooling accepts the padding: at most half of a kernel
    ceil_mode: bool = False  # whether torch's ceil_mode is needed for the last window

    def padded(self, x: Tensor, value: float = 0) -> Tensor:
        """Return the input with explicit padding."""
        return F.pad(x, self.margins, value=value) if any(self.margins) else x


def torch_window(kernel: Ints, spatial: Ints, attrs: Mapping[str, Any]) -> TorchWindow:
    """Return the window of a node's attributes on an input of these sizes."""
    geometry = tuple(
        v if v is None or isinstance(v, (bytes, int)) else tuple(v)
        for v in map(attrs.get, ("auto_pad", "ceil_mode", "dilations", "pads", "strides"))
    )
    return _torch_window(tuple(kernel), tuple(spatial), *geometry)


@lru_cache(maxsize=1024)
def _torch_window(kernel: Ints, spatial: Ints, *geometry: Any) -> TorchWindow:
    names = ("auto_pad", "ceil_mode", "dilations", "pads", "strides")
    moved = window_of(kernel, dict(zip(names, geometry, strict=True)))
    path = window_geometry(moved, spatial)
    trailing = [
        (out - 1) * stride + (k - 1) * dilation + 1 - front - size
        for out, stride, k, dilation, front, size in zip(
            path.outs, path.strides, path.kernel, path.dilations, path.front, spatial, strict=True
        )
    ]
    margins = [
        m
        for f, b in zip(reversed(path.front), reversed(trailing), strict=True)
        for m in (f, max(b, 0))
    ]
    # Trailing padding may exceed the needed amount by less than a stride: no window reaches it.
    fits = all(f >= b > f - s for f, b, s in zip(path.front, trailing, path.strides, strict=True))
    is_narrow = all(2 * f <= k for f, k in zip(path.front, path.kernel, strict=True))
    if not fits and moved.ceil_mode and moved.begins == moved.ends:
        return TorchWindow(path, path.front, margins, is_narrow, ceil_mode=True)
    return TorchWindow(path, path.front if fits else None, margins, fits and is_narrow)


def spatial_only(node: Node) -> str:
    """Return why torch does not support a window of so many axes; empty if it does."""
    rank = node.inputs[0].tensor.rank if node.inputs[0] is not None else 0
    if rank <= MAX_SPATIAL + 2:
        return ""
    return f"torch slides windows along {MAX_SPATIAL} axes at most, and this input has {rank - 2}"

"""Sliding windows of convolutions and pools: what torch can be told of them, and what it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Node
from sardonyx.ops.sliding_window import Ints, WindowGeometry, window_geometry, window_of

MAX_SPATIAL: Final = 3  # axes that torch convolves and pools along


@frozen
class Slide:
    """A window on an input of known size."""

    path: WindowGeometry
    padding: Ints | None  # on both sides of each axis alike; None where sides differ
    margins: list[int]  # for F.pad, so that the last window ends where the input does
    pools: bool  # whether torch's pools take the padding: up to half of a kernel
    ceil_mode: bool = False  # whether the padding needs torch's own to make all windows

    def padded(self, x: Tensor, value: float = 0) -> Tensor:
        """The input with all that windows reach beyond it."""
        return F.pad(x, self.margins, value=value) if any(self.margins) else x


def slide(kernel: Ints, spatial: Ints, attrs: Mapping[str, Any]) -> Slide:
    """The window of a node's attributes on an input of these sizes."""
    geometry = tuple(
        v if v is None or isinstance(v, (bytes, int)) else tuple(v)
        for v in map(attrs.get, ("auto_pad", "ceil_mode", "dilations", "pads", "strides"))
    )
    return _slide(tuple(kernel), tuple(spatial), *geometry)


@lru_cache(maxsize=1024)
def _slide(kernel: Ints, spatial: Ints, *geometry: Any) -> Slide:
    names = ("auto_pad", "ceil_mode", "dilations", "pads", "strides")
    moved = window_of(kernel, dict(zip(names, geometry, strict=True)))
    path = window_geometry(moved, spatial)
    behind = [
        (out - 1) * stride + (k - 1) * dilation + 1 - front - size
        for out, stride, k, dilation, front, size in zip(
            path.outs, path.strides, path.kernel, path.dilations, path.front, spatial, strict=True
        )
    ]
    margins = [
        m
        for f, b in zip(reversed(path.front), reversed(behind), strict=True)
        for m in (f, max(b, 0))
    ]
    # The end of the padding matters only if a window reaches it.
    fits = all(f >= b > f - s for f, b, s in zip(path.front, behind, path.strides, strict=True))
    is_narrow = all(2 * f <= k for f, k in zip(path.front, path.kernel, strict=True))
    if not fits and moved.ceil_mode and moved.begins == moved.ends:
        return Slide(path, path.front, margins, is_narrow, ceil_mode=True)
    return Slide(path, path.front if fits else None, margins, fits and is_narrow)


def spatial_only(node: Node) -> str:
    """Why torch does not know a window of so many axes."""
    rank = node.inputs[0].tensor.rank if node.inputs[0] is not None else 0
    if rank <= MAX_SPATIAL + 2:
        return ""
    return f"torch slides windows along {MAX_SPATIAL} axes at most, and this input has {rank - 2}"

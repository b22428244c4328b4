"""GridSample, AffineGrid, RoiAlign and MaxRoiPool on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import BF16, F16, F32, F64
from sardonyx.graph.graph import Node, input_of
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering

_MODES: Final = {b"nearest": 0, b"linear": 1, b"cubic": 2}


_PADDINGS: Final = {b"zeros": 0, b"border": 1, b"reflection": 2}


_NARROW: Final = (F32, F16, BF16)


_MAX_AXES: Final = 3


def grid_sample(node: Node) -> Call | No:
    x, grid = input_of(node, 0), input_of(node, 1)
    dtype, attrs = x.tensor.dtype, node.attrs
    if x.tensor.rank - 2 > _MAX_AXES:
        return No(f"no kernel samples along {x.tensor.rank - 2} axes")
    if grid.tensor.dtype not in (*_NARROW, F64):
        return No(f"no kernel for a grid of {grid.tensor.dtype}")
    is_wide = grid.tensor.dtype is F64
    if attrs["mode"] == b"nearest":
        if dtype.bits > 64:
            return No(f"no kernel for {dtype}")
    elif dtype not in ((F64,) if is_wide else _NARROW):
        return No(f"no kernel mixes {dtype} by a grid of {grid.tensor.dtype}")
    ints = (_MODES[attrs["mode"]], _PADDINGS[attrs["padding_mode"]], attrs["align_corners"])
    return Call("grid_sample", (x, grid), ints)


def affine_grid(node: Node) -> Call | No:
    theta, size = input_of(node, 0), input_of(node, 1)
    if theta.tensor.dtype not in (*_NARROW, F64):
        return No(f"no kernel for {theta.tensor.dtype}")
    ints = (node.attrs["align_corners"],)
    if size.tensor.sym is not None:
        return Call("affine_grid", (theta, None), ints)
    return Call("affine_grid_at_run", (theta, size), ints)


def roi_align(node: Node) -> Call | No:
    attrs = node.attrs
    if input_of(node, 0).tensor.dtype is not F32:
        return No(f"no kernel for {input_of(node, 0).tensor.dtype}")
    is_aligned = attrs["coordinate_transformation_mode"] == b"half_pixel"
    ints = (int(is_aligned), int(attrs["mode"] == b"max"), attrs["sampling_ratio"])
    return Call("roi_align", tuple(node.inputs), ints, (attrs["spatial_scale"],))


def max_roi_pool(node: Node) -> Call | No:
    if input_of(node, 0).tensor.dtype is not F32:
        return No(f"no kernel for {input_of(node, 0).tensor.dtype}")
    return Call("max_roi_pool", tuple(node.inputs), (), (node.attrs["spatial_scale"],))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "AffineGrid"): affine_grid,
    ("", "GridSample"): grid_sample,
    ("", "MaxRoiPool"): max_roi_pool,
    ("", "RoiAlign"): roi_align,
}

"""GridSample, AffineGrid, RoiAlign, MaxRoiPool and CropAndResize on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import F32, F64, FLOATS
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.op import MICROSOFT
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings, direct, for_types

# Numbers as in native/kernels/sample.
_MODES: Final = {b"nearest": 0, b"linear": 1, b"cubic": 2}
_PADDINGS: Final = {b"zeros": 0, b"border": 1, b"reflection": 2}
_MAX_AXES: Final = 3


def grid_sample(node: Node) -> Call | No:
    """Nearest neighbour copies elements of any type; other modes interpolate in the grid's type."""
    x, grid = input_of(node, 0), input_of(node, 1)
    dtype, grid_type, attrs = x.tensor.dtype, grid.tensor.dtype, node.attrs
    if x.tensor.rank - 2 > _MAX_AXES:
        return No(f"no kernel samples along {x.tensor.rank - 2} axes")
    if grid_type not in FLOATS:
        return No(f"no kernel for a grid of {grid_type}")
    if attrs["mode"] == b"nearest":
        if dtype.bits > 64:
            return No(f"no kernel for {dtype}")
    elif dtype not in ({F64} if grid_type is F64 else FLOATS - {F64}):
        return No(f"no kernel interpolates {dtype} by a grid of {grid_type}")
    ints = (_MODES[attrs["mode"]], _PADDINGS[attrs["padding_mode"]], attrs["align_corners"])
    return Call("grid_sample", (x, grid), ints)


def affine_grid(node: Node) -> Call:
    theta, size = input_of(node, 0), input_of(node, 1)
    ints = (node.attrs["align_corners"],)
    if size.tensor.sym is not None:  # the kernel takes the size from its output's shape
        return Call("affine_grid", (theta, None), ints)
    return Call("affine_grid_at_run", (theta, size), ints)


def roi_align(node: Node) -> Call:
    attrs = node.attrs
    is_aligned = attrs["coordinate_transformation_mode"] == b"half_pixel"
    ints = (int(is_aligned), int(attrs["mode"] == b"max"), attrs["sampling_ratio"])
    return Call("roi_align", node.inputs, ints, (attrs["spatial_scale"],))


def crop_and_resize(node: Node) -> Call | No:
    if input_of(node, 3).tensor.sym is None:
        return No("no kernel for a crop_size that is computed")
    attrs = node.attrs
    ints = (int(attrs["mode"] == b"nearest"),)
    return Call("crop_and_resize", node.inputs[:3], ints, (attrs["extrapolation_value"],))


LOWERINGS: Final[Lowerings] = {
    (MICROSOFT, "CropAndResize"): crop_and_resize,
    ("", "AffineGrid"): for_types(FLOATS, affine_grid),
    ("", "GridSample"): grid_sample,
    ("", "MaxRoiPool"): for_types((F32,), direct("max_roi_pool", floats=("spatial_scale",))),
    ("", "RoiAlign"): for_types((F32,), roi_align),
}

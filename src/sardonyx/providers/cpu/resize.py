"""Resize on the CPU."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.inference import axes_of
from sardonyx.place.lowered import Call, Lowered, Reshaped
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings
from sardonyx.providers.cpu.move import follows
from sardonyx.providers.cpu.shape import element_bits

# Numbers as in native/kernels/resize.
_MODES: Final = {b"nearest": 0, b"linear": 1, b"cubic": 2}
_TRANSFORMS: Final = {
    b"half_pixel": 0,
    b"half_pixel_symmetric": 1,
    b"pytorch_half_pixel": 2,
    b"align_corners": 3,
    b"asymmetric": 4,
    b"tf_half_pixel_for_nn": 5,
    b"tf_crop_and_resize": 6,
}
_ROUNDINGS: Final = {b"round_prefer_floor": 0, b"round_prefer_ceil": 1, b"floor": 2, b"ceil": 3}
_POLICIES: Final = {b"stretch": 0, b"not_larger": 1, b"not_smaller": 2}
_MAX_AXES: Final = {b"linear": 7, b"cubic": 4}  # axes that are interpolated
_FROM_SIZES: Final = 0.0  # a scale that the kernel computes from the sizes


def resize(node: Node) -> Lowered | No:
    x, out, attrs = input_of(node, 0), node.outputs[0].tensor, node.attrs
    roi, scales, sizes = (_present(optional_input(node, slot)) for slot in (1, 2, 3))
    rank = x.tensor.rank
    axes = tuple(range(rank)) if attrs["axes"] is None else axes_of(attrs["axes"], rank)
    is_crop = attrs["coordinate_transformation_mode"] == b"tf_crop_and_resize"
    factors, box = _factors(scales, axes, rank), _box(roi if is_crop else None, axes, rank)
    if why := _unsupported(node, axes, factors):
        return No(why)
    # Applies to `sizes` alone: the kernel chooses one scale for all axes.
    keeps_ratio = attrs["keep_aspect_ratio_policy"] != b"stretch" and scales is None
    # Operands that the kernel reads at run time; constants are in `floats`.
    open_scales, open_roi = _unless_const(scales), _unless_const(roi) if is_crop else None
    is_same = x.tensor.dims == out.dims and not is_crop and not keeps_ratio
    # Scales of 1, or sizes equal to the input's, copy elements in every mode.
    if is_same and open_scales is None and all(f in (0, 1) for f in factors):
        return Reshaped(x)
    known = None if sizes is None else sizes.tensor.sym
    is_known = follows(out.dims, x.tensor.dims, known) and open_scales is None
    has_const_scales = scales is not None and open_scales is None
    open_sizes = sizes if keeps_ratio or not (is_known or has_const_scales) else None
    floats = (attrs["cubic_coeff_a"], *factors, *box)
    kernel = "resize" if is_known else "resize_at_run"
    operands = (x, open_scales, open_sizes, open_roi)
    return Call(kernel, operands, _ints(node, axes, keeps_ratio), floats, writes_rows=True)


def _ints(node: Node, axes: tuple[int, ...], keeps_ratio: bool) -> tuple[int, ...]:
    """Return the integer arguments of the kernels."""
    attrs, dtype = node.attrs, input_of(node, 0).tensor.dtype
    return (
        _MODES[attrs["mode"]],
        _TRANSFORMS[attrs["coordinate_transformation_mode"]],
        _ROUNDINGS[attrs["nearest_mode"]],
        attrs["exclude_outside"],
        attrs["antialias"],
        _POLICIES[attrs["keep_aspect_ratio_policy"]] if keeps_ratio else 0,
        element_bits(np.array(attrs["extrapolation_value"]).astype(dtype.np)),
        len(axes),
        *axes,
    )


def _unless_const(value: Value | None) -> Value | None:
    """Return an operand if it is known only at run time."""
    return None if value is None or value.is_const else value


def _present(value: Value | None) -> Value | None:
    """Return an optional input; an empty tensor stands for an absent one."""
    return None if value is None or value.tensor.dims == (0,) else value


def _factors(scales: Value | None, axes: tuple[int, ...], rank: int) -> list[float]:
    """Return the scale of each axis, as far as it is known."""
    if scales is None or scales.const is None:
        return [_FROM_SIZES if i in axes else 1.0 for i in range(rank)]
    found = dict(zip(axes, scales.const.read().tolist(), strict=True))
    return [found.get(i, 1.0) for i in range(rank)]


def _box(roi: Value | None, axes: tuple[int, ...], rank: int) -> tuple[float, ...]:
    """Return where a crop begins along each axis, then where it ends, as fractions."""
    starts, ends = [0.0] * rank, [1.0] * rank
    if roi is not None and roi.const is not None:
        numbers = roi.const.read().astype(np.float64).reshape(-1).tolist()
        if len(numbers) != 2 * len(axes):
            raise ShapeError(f"roi has {len(numbers)} numbers for {len(axes)} axes")
        for i, axis in enumerate(axes):
            starts[axis], ends[axis] = numbers[i], numbers[len(axes) + i]
    return (*starts, *ends)


def _unsupported(node: Node, axes: tuple[int, ...], factors: list[float]) -> str:
    """Return why there is no kernel for a node; empty if there is one."""
    x, out, attrs = input_of(node, 0).tensor, node.outputs[0].tensor, node.attrs
    # Axes that change; along others the kernel copies.
    resized = [a for a in axes if factors[a] != 1 and x.dims[a] != out.dims[a]]
    roi, scales, sizes = (_present(optional_input(node, slot)) for slot in (1, 2, 3))
    is_nearest = attrs["mode"] == b"nearest"
    if not is_nearest and x.dtype is not F32:
        return f"no kernel interpolates {x.dtype}"
    if x.dtype.bits > 64:
        return f"no kernel for {x.dtype}"
    if not is_nearest and len(resized) > (1 if attrs["antialias"] else _MAX_AXES[attrs["mode"]]):
        return f"no kernel interpolates along {len(resized)} axes"
    if attrs["coordinate_transformation_mode"] == b"tf_crop_and_resize":
        n = len(attrs["axes"] or range(x.rank))
        if roi is None or (roi.is_const and roi.tensor.dims != (2 * n,)):
            return f"the roi does not hold {2 * n} numbers"
    if sizes is None and scales is None:
        return "neither scales nor sizes are known"
    return ""


LOWERINGS: Final[Lowerings] = {("", "Resize"): resize}

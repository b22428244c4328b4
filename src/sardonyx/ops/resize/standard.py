"""Resize: output sizes from scales or sizes, and the separable resampling of all axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import F32, IEEE, STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional
from sardonyx.ops.arrays import Array, as_ints
from sardonyx.ops.inference import axes_of, check_choice
from sardonyx.ops.resize.filter import (
    ROUNDINGS,
    TRANSFORMS,
    AxisResize,
    ResizeMode,
    input_coordinates,
    resample,
)
from sardonyx.ops.sample.interpolate import from_interpolable, interpolable
from sardonyx.ops.sizes import CLASSIC, SIZES
from sardonyx.ops.sliding_window import Ints

MAX_SIZE: Final = 1 << 40  # of one axis after resizing
ONE_OF_TWO: Final = "Resize needs either scales or sizes: one of the two, not both or none"
_ONE_EACH: Final = "scales or sizes do not hold one number per resized axis"


resize = Op(
    "Resize",
    19,
    "x:T roi:R? scales:F? sizes:I?",
    "y:T",
    attrs={
        "antialias": 0,
        "axes": optional("ints"),
        "coordinate_transformation_mode": b"half_pixel",
        "cubic_coeff_a": -0.75,
        "exclude_outside": 0,
        "extrapolation_value": 0.0,
        "keep_aspect_ratio_policy": b"stretch",
        "mode": b"nearest",
        "nearest_mode": b"round_prefer_floor",
    },
    types={"T": CLASSIC, "R": IEEE, "F": frozenset((F32,)), "I": SIZES},
)


def resized_axes(rank: int, attrs: Mapping[str, Any]) -> Ints:
    """Return the axes that are resized."""
    return tuple(range(rank)) if attrs["axes"] is None else axes_of(attrs["axes"], rank)


def _non_empty(fact: Fact | None) -> Fact | None:
    """Return an optional input; None if it is absent or an empty vector."""
    if fact is not None and fact.rank != 1:
        raise ShapeError(f"scales and sizes must be vectors, got {fact}")
    return None if fact is None or fact.dims == (0,) else fact


def _check_modes(x: Fact, attrs: Mapping[str, Any]) -> None:
    allowed: dict[str, Iterable[bytes]] = {
        "mode": (b"nearest", b"linear", b"cubic"),
        "nearest_mode": ROUNDINGS,
        "coordinate_transformation_mode": TRANSFORMS,
        "keep_aspect_ratio_policy": (b"stretch", b"not_larger", b"not_smaller"),
    }
    for name, values in allowed.items():
        check_choice(name, attrs[name], values)
    if x.dtype is STRING and attrs["mode"] != b"nearest":
        raise ShapeError("strings cannot be interpolated: only mode nearest resizes them")


@resize.infer
def _(
    g: Scope, x: Fact, roi: Fact | None, scales: Fact | None, sizes: Fact | None, **attrs: Any
) -> Fact:
    _check_modes(x, attrs)
    axes = resized_axes(x.rank, attrs)
    is_open = any(f is not None and f.const is None for f in (scales, sizes))
    scales, sizes = _non_empty(scales), _non_empty(sizes)
    present = [f for f in (scales, sizes) if f is not None]
    if not present and is_open:
        # Both are empty, and one is computed: as in onnxruntime, that fails when the node runs.
        return Fact(x.dtype, tuple(g.new_dim("resized") for _ in x.dims))
    if not present or (len(present) == 2 and all(isinstance(f.dims[0], int) for f in present)):
        raise ShapeError(ONE_OF_TWO)
    for fact in present:
        if isinstance(fact.dims[0], int):
            g.equal(fact.dims[0], len(axes), _ONE_EACH)
    shape = list(x.dims)
    if len(present) == 2:  # one of them is empty at run time
        for axis in axes:
            shape[axis] = g.new_dim("resized")
        return Fact(x.dtype, tuple(shape))
    (what,) = present
    g.equal(what.dims[0], len(axes), _ONE_EACH)
    old = tuple(x.dims[a] for a in axes)
    new = _by_scales(g, old, scales) if scales is not None else _by_sizes(g, old, what, attrs)
    for axis, size in zip(axes, new, strict=True):
        shape[axis] = size
    return Fact(x.dtype, tuple(shape))


def _by_sizes(g: Scope, old: Shape, sizes: Fact, attrs: Mapping[str, Any]) -> Shape:
    keeps_ratio = attrs["keep_aspect_ratio_policy"] != b"stretch"
    if sizes.sym is None or (keeps_ratio and sizes.ints is None):
        return tuple(g.new_dim("resized") for _ in old)
    for size in sizes.sym:
        g.at_least(size, 0, "sizes hold a negative number")
        g.at_least(MAX_SIZE, size, f"sizes hold a number over {MAX_SIZE}")
    if not keeps_ratio:
        return sizes.sym
    if not all(isinstance(d, int) and d > 0 for d in old):
        return tuple(g.new_dim("resized") for _ in old)
    ints: Any = old
    return _keep_aspect_ratio(ints, sizes.ints or (), attrs["keep_aspect_ratio_policy"])[0]


def _by_scales(g: Scope, old: Shape, scales: Fact) -> Shape:
    if scales.const is None or not scales.const.is_small:
        return tuple(g.new_dim("resized") for _ in old)
    factors = scales.const.read().tolist()
    scaled = [_scaled(size, f) for size, f in zip(old, factors, strict=True)]
    return tuple(g.new_dim("resized") if m is None else m for m in scaled)


def _scaled(size: Size, scale: float) -> Size | None:
    """Return floor(size * scale): exact for simple fractions, else in float32 as in ONNX."""
    if not 0 < scale < MAX_SIZE:
        raise ShapeError(f"the scale {scale} is not a positive number")
    # A float's denominator is a power of 2; a small one means a simple fraction such as 5 / 2.
    top, bottom = scale.as_integer_ratio()
    if bottom <= 64:
        return size * top // bottom
    return int(np.float32(size) * np.float32(scale)) if isinstance(size, int) else None


def _keep_aspect_ratio(old: Ints, requested: Ints, policy: bytes) -> tuple[Ints, float]:
    """Return sizes of the input's aspect ratio that fit into or cover the requested; the scale."""
    ratios = [a / o for a, o in zip(requested, old, strict=True)]
    scale = min(ratios) if policy == b"not_larger" else max(ratios)
    return tuple(math.floor(scale * o + 0.5) for o in old), scale


@resize.reference
@np.errstate(all="ignore")
def _(x: Array, *inputs: Array | None, **attrs: Any) -> Array:
    axes = resized_axes(x.ndim, attrs)
    resizes = dict(zip(axes, axis_resizes(x.shape, axes, inputs, attrs), strict=True))
    mode = mode_of(attrs)
    crops = mode.transform == b"tf_crop_and_resize"
    y = x if mode.mode == b"nearest" else interpolable(x)
    # Axes that shrink come first, which leaves less work for the others.
    for axis in sorted(resizes, key=lambda a: resizes[a].out / max(1, resizes[a].size)):
        s = resizes[axis]
        if s.size != s.out or s.scale != 1 or crops:
            y = resample(y, axis, s, mode)
    if crops:
        y = _extrapolate(y, resizes, mode, attrs["extrapolation_value"])
    # As in onnxruntime, integers are truncated after linear interpolation and rounded otherwise.
    rounds = mode.antialias or mode.mode == b"cubic"
    return from_interpolable(y, x, rounds=rounds) if y is not x else x.copy()


def mode_of(attrs: Mapping[str, Any]) -> ResizeMode:
    """The interpolation filter that a node's attributes select."""
    return ResizeMode(
        attrs["mode"],
        attrs["coordinate_transformation_mode"],
        attrs["nearest_mode"],
        attrs["cubic_coeff_a"],
        bool(attrs["exclude_outside"]),
        bool(attrs["antialias"]),
    )


def axis_resizes(
    shape: Sequence[int], axes: Ints, inputs: tuple[Array | None, ...], attrs: Mapping[str, Any]
) -> list[AxisResize]:
    """Return the resizing of each axis from the run-time inputs roi, scales and sizes."""
    roi, scales, sizes = inputs
    old = tuple(shape[a] for a in axes)
    n = len(axes)
    starts, ends = [0.0] * n, [1.0] * n
    if attrs["coordinate_transformation_mode"] == b"tf_crop_and_resize":
        if roi is None or roi.size != 2 * n:
            raise InvalidArgument(f"tf_crop_and_resize needs a roi of {2 * n} numbers")
        box = roi.astype(np.float64).reshape(-1).tolist()
        starts, ends = box[:n], box[n:]
    has_scales = scales is not None and scales.size > 0
    if has_scales == (sizes is not None and sizes.size > 0):
        raise InvalidArgument(ONE_OF_TWO)
    if scales is not None and has_scales:
        factors = scales.astype(np.float64).tolist()
        _check_length(factors, n, "scales")
        outs: list[Any] = [_scaled(*pair) for pair in zip(old, factors, strict=True)]
    else:
        requested = () if sizes is None else as_ints(sizes)
        _check_length(requested, n, "sizes")
        outs, factors = _sized(old, requested, attrs["keep_aspect_ratio_policy"])
    for size, out in zip(old, outs, strict=True):
        if not 0 <= out <= MAX_SIZE or (out and not size):
            raise InvalidArgument(f"an axis of {size} cannot become one of {out}")
    return [AxisResize(*row) for row in zip(old, outs, factors, starts, ends, strict=True)]


def _check_length(values: Sequence[Any], n: int, name: str) -> None:
    if len(values) != n:
        raise InvalidArgument(f"{name} has {len(values)} numbers, and {n} axes are resized")


def _sized(old: Ints, requested: Ints, policy: bytes) -> tuple[list[int], list[float]]:
    if policy == b"stretch":
        return list(requested), [a / max(1, o) for a, o in zip(requested, old, strict=True)]
    if 0 in old:
        raise InvalidArgument(f"an image of sizes {old} has no aspect ratio to keep")
    outs, scale = _keep_aspect_ratio(old, requested, policy)
    return list(outs), [scale] * len(old)


def _extrapolate(
    y: Array, resizes: Mapping[int, AxisResize], mode: ResizeMode, value: float
) -> Array:
    """Set outputs whose coordinate is outside the input to extrapolation_value."""
    y = y.copy()
    for axis, s in resizes.items():
        coordinates = input_coordinates(s, mode)
        outside = (coordinates < 0) | (coordinates > s.size - 1)
        y[(slice(None),) * axis + (outside,)] = value
    return y


OPS: Final = (resize,)

"""Resize lowering: narrow types compute in float32, wide filters one axis at a time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import BF16, F16, F32, I8, I16, U8, U16
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, optional_input
from sardonyx.ops.builder import Builder
from sardonyx.ops.inference import axes_of
from sardonyx.passes.rule import P, hole, need, ranked, rule

END: Final = (1 << 63) - 1
# The rounding error of a weighted sum that is an integer by definition (ops/sample/interpolate.py).
NOISE: Final = 5e-5


@rule(P.Resize(hole("x"), rest=True).named("node"))
def resize_in_float(b: Builder, x: Value, node: Node) -> Value:
    """Interpolate narrow types in float32, then round or truncate once."""
    dtype, attrs = x.tensor.dtype, node.attrs
    need(attrs["mode"] != b"nearest", "nearest only moves elements")
    need(dtype in (F16, BF16, I8, U8, I16, U16), "not a narrow type")
    like = Value("", Fact(F32, node.outputs[0].tensor.shape))
    y = b.Resize(b.Cast(x, to=F32.onnx), *node.inputs[1:], like=like, **attrs)
    if dtype.is_integer:
        # Reference: cubic and antialiased results are rounded, linear ones truncated. NOISE keeps
        # truncation from turning 2.9999 into 2.
        rounds = attrs["antialias"] or attrs["mode"] == b"cubic"
        y = b.Floor(b.Add(y, 0.5)) if rounds else b.Add(y, b.Mul(b.Sign(y), NOISE))
        limits = np.iinfo(dtype.np)
        y = b.Clip(y, b.const(float(limits.min), F32), b.const(float(limits.max), F32))
    return b.Cast(y, to=dtype.onnx)


@rule(P.Resize(hole("x"), rest=True).named("node"))
def resize_axis_by_axis(b: Builder, x: Value, node: Node) -> Value:
    """Resize with an antialias filter along one axis after the other.

    The filter is separable: its taps then add up over axes instead of multiplying.
    """
    attrs = node.attrs
    need(attrs["antialias"] and attrs["mode"] != b"nearest", "the filter has few taps")
    need(attrs["keep_aspect_ratio_policy"] == b"stretch", "the scales of axes depend on each other")
    is_cropped = attrs["coordinate_transformation_mode"] == b"tf_crop_and_resize"
    need(not is_cropped, "the region of interest is cropped")
    ranked(x, node.outputs[0])
    rank = x.tensor.rank
    axes = tuple(range(rank)) if attrs["axes"] is None else axes_of(attrs["axes"], rank)
    need(len(axes) > 1, "only one axis")
    operands = (optional_input(node, slot) for slot in (2, 3))
    # An empty tensor stands for an absent input.
    scales, sizes = (None if v is None or v.tensor.dims == (0,) else v for v in operands)
    need((scales is None) != (sizes is None), "scales or sizes may be empty")
    y = x
    # i counts from -len(axes) + 1 to 0: positions from the end of scales and sizes.
    for i, axis in enumerate(axes, 1 - len(axes)):
        at = (b.ints(i - 1), b.ints(i or END), b.ints(0))
        along_axis = [None if v is None else b.Slice(v, *at) for v in (scales, sizes)]
        like = None if i else node.outputs[0]
        y = b.Resize(y, None, *along_axis, like=like, **{**attrs, "axes": (axis,)})
    return y


RULES: Final[tuple[Any, ...]] = (*resize_in_float, *resize_axis_by_axis)

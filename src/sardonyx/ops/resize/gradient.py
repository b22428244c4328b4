"""The gradient of Resize, which is linear along each axis: its matrix is Resize(identity)."""

from __future__ import annotations

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.gradient_rules import GradientBuilder, gradient, ranked
from sardonyx.ops.inference import axes_of
from sardonyx.ops.resize.filter import input_coordinates, resample
from sardonyx.ops.resize.standard import axis_resizes, mode_of, resized_axes

_FILTER_ATTRS = ("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside",
          "mode", "nearest_mode")  # fmt: skip


@gradient("Resize")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, attrs = input_of(node, 0), node.attrs
    rank = ranked(x).rank
    axes = axes_of(attrs["axes"] or range(rank), rank)
    keeps_ratio = attrs["keep_aspect_ratio_policy"] != b"stretch" and _non_empty_input(node, 3)
    for i, axis in enumerate(axes):
        if keeps_ratio:
            dy = _along(b, dy, _matrix_of_ratio(b, node, i), axis)
        elif not _is_unchanged(node, i, axis):
            dy = _along(b, dy, _matrix(b, node, i, axis), axis)
    return b.reshape(dy, x)


def _is_unchanged(node: Node, i: int, axis: int) -> bool:
    """Whether an axis is neither resized nor cropped."""
    if node.attrs["coordinate_transformation_mode"] == b"tf_crop_and_resize":
        return False
    scales = _non_empty_input(node, 2)
    if scales is not None:
        const = scales.const
        return const is not None and float(const.read().reshape(-1)[i]) == 1
    return bool(ranked(input_of(node, 0)).dims[axis] == ranked(node.outputs[0]).dims[axis])


def _non_empty_input(node: Node, slot: int) -> Value | None:
    """Return an optional input; None if it is absent or empty."""
    value = optional_input(node, slot)
    return None if value is None or ranked(value).dims == (0,) else value


def _matrix(b: GradientBuilder, node: Node, i: int, axis: int) -> Value:
    """Return the matrix of one axis, [out, in]; outputs outside the image are rows of zeros."""
    x = input_of(node, 0)
    size = b.element(b.shape(x), axis)
    square = b.Expand(b.const(0, x.tensor.dtype), b.Concat(size, size, axis=0))
    scales, sizes = _non_empty_input(node, 2), _non_empty_input(node, 3)
    scale_or_size = [None if v is None else b.element(v, i) for v in (scales, sizes)]
    roi = None
    if node.attrs["coordinate_transformation_mode"] == b"tf_crop_and_resize":
        box = input_of(node, 1)
        n = ranked(x).rank if node.attrs["axes"] is None else len(node.attrs["axes"])
        roi = b.Concat(b.element(box, i), b.element(box, n + i), axis=0)
    attrs = {name: node.attrs[name] for name in _FILTER_ATTRS}
    return b.Resize(b.EyeLike(square), roi, *scale_or_size, axes=(0,), **attrs)


def _matrix_of_ratio(b: GradientBuilder, node: Node, i: int) -> Value:
    """Return the matrix of an axis that is resized by the same scale as all the others."""
    x, sizes = input_of(node, 0), input_of(node, 3)
    shape, const = ranked(x).static, sizes.const
    if shape is None or const is None:
        raise NotImplemented(
            "the scale of a Resize that keeps the aspect ratio follows from dynamic sizes",
            hint="fix the dynamic sizes, by name, before asking for gradients",
        )
    axes, box = resized_axes(len(shape), node.attrs), optional_input(node, 1)
    roi = None if box is None or box.const is None else box.const.read()
    resized = axis_resizes(shape, axes, (roi, None, const.read()), node.attrs)[i]
    matrix = resample(np.eye(resized.size), 0, resized, mode_of(node.attrs))
    if node.attrs["coordinate_transformation_mode"] == b"tf_crop_and_resize":
        coordinates = input_coordinates(resized, mode_of(node.attrs))
        matrix[(coordinates < 0) | (coordinates > resized.size - 1)] = 0
    return b.const(matrix, x.tensor.dtype)


def _along(b: GradientBuilder, dy: Value, matrix: Value, axis: int) -> Value:
    """Return the gradient along one axis: dy times that axis's resize matrix."""
    rank = ranked(dy).rank
    last = (*(a for a in range(rank) if a != axis), axis)
    product = b.MatMul(b.Transpose(dy, perm=last), matrix)
    return b.Transpose(product, perm=tuple(last.index(a) for a in range(rank)))

"""The gradient of Resize, which is linear along each axis: its matrix is Resize(identity)."""

from __future__ import annotations

from sardonyx.errors import NotImplemented
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.gradients import GradientBuilder, gradient, ranked
from sardonyx.ops.inference import axes_of

_FILTER_ATTRS = ("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside",
          "mode", "nearest_mode")  # fmt: skip


@gradient("Resize")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, attrs = input_of(node, 0), node.attrs
    if attrs["coordinate_transformation_mode"] == b"tf_crop_and_resize":
        raise NotImplemented(
            "a Resize that crops has no gradient", hint="crop by a Slice before it"
        )
    if attrs["keep_aspect_ratio_policy"] != b"stretch":
        raise NotImplemented(
            "a Resize that keeps the aspect ratio has no gradient", hint="give the sizes themselves"
        )
    rank = ranked(x).rank
    axes = axes_of(attrs["axes"] or range(rank), rank)
    for i, axis in enumerate(axes):
        if not _is_unchanged(node, i, axis):
            dy = _along(b, node, dy, i, axis)
    return b.reshape(dy, x)


def _is_unchanged(node: Node, i: int, axis: int) -> bool:
    """Whether an axis is not resized."""
    scales = _non_empty_input(node, 2)
    if scales is not None:
        const = scales.const
        return const is not None and float(const.read().reshape(-1)[i]) == 1
    return bool(ranked(input_of(node, 0)).dims[axis] == ranked(node.outputs[0]).dims[axis])


def _non_empty_input(node: Node, slot: int) -> Value | None:
    """Return an optional input; None if it is absent or empty."""
    value = optional_input(node, slot)
    return None if value is None or ranked(value).dims == (0,) else value


def _along(b: GradientBuilder, node: Node, dy: Value, i: int, axis: int) -> Value:
    """Return the gradient along one axis: dy times that axis's resize matrix."""
    x, rank = input_of(node, 0), ranked(dy).rank
    size = b.element(b.shape(x), axis)
    square = b.Expand(b.const(0, x.tensor.dtype), b.Concat(size, size, axis=0))
    scales, sizes = _non_empty_input(node, 2), _non_empty_input(node, 3)
    scale_or_size = [None if v is None else b.element(v, i) for v in (scales, sizes)]
    attrs = {name: node.attrs[name] for name in _FILTER_ATTRS}
    matrix = b.Resize(b.EyeLike(square), None, *scale_or_size, axes=(0,), **attrs)  # [out, in]
    last = (*(a for a in range(rank) if a != axis), axis)
    product = b.MatMul(b.Transpose(dy, perm=last), matrix)
    return b.Transpose(product, perm=tuple(last.index(a) for a in range(rank)))

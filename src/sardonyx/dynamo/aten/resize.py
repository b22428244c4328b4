"""Upsampling and its gradients.

All modes are separable and linear. Weights along an axis are computed by torch itself, by resizing
the identity matrix when the graph is compiled, so that they have torch's rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from sardonyx.base.records import frozen
from sardonyx.dynamo.aten_builder import AtenBuilder, Dimension, Unsupported, expression_of
from sardonyx.dynamo.axis_maps import Matrix, apply_along
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value

# ATen op -> number of spatial axes, Resize's mode. "aa" filters have no kernel for several axes.
_INTERPOLATING: Final = {
    "upsample_linear1d": (1, b"linear"),
    "upsample_bilinear2d": (2, b"linear"),
    "upsample_trilinear3d": (3, b"linear"),
    "upsample_bicubic2d": (2, b"cubic"),
    "_upsample_bilinear2d_aa": (2, b""),
    "_upsample_bicubic2d_aa": (2, b""),
    "_upsample_lanczos2d_aa": (2, b""),
}
_NEAREST: Final = {
    f"{name}{n}d": (n, b"nearest")
    for name in ("upsample_nearest", "_upsample_nearest_exact")
    for n in (1, 2, 3)
}
_MODES: Final = {**_INTERPOLATING, **_NEAREST}


@frozen
class Upsampling:
    """One call: the op's name, its spatial sizes and options."""

    name: str
    ins: tuple[Dimension, ...]
    outs: tuple[Dimension, ...]
    align_corners: bool
    scales: tuple[float | None, ...]

    @property
    def mode(self) -> bytes:
        return _MODES[self.name][1]

    @property
    def is_static(self) -> bool:
        return all(isinstance(expression_of(d), int) for d in (*self.ins, *self.outs))

    def matrix(self, i: int) -> Matrix:
        """Return the weights [out, in] along one spatial axis.

        The other axes have two elements: torch's antialiased filters are wrong for images of one
        column.
        """
        n, size, out = len(self.outs), int(self.ins[i]), int(self.outs[i])
        outs, scales = [2] * n, list[float | None]([None]) * n
        outs[i], scales[i] = out, self.scales[i]
        lines = [1] * n
        lines[i] = size
        corners = () if self.mode == b"nearest" else (self.align_corners,)
        op = getattr(torch.ops.aten, self.name).default
        with torch.no_grad():
            columns = torch.eye(size, device="cpu").reshape(size, 1, *lines)
            columns = columns.expand(size, 1, *(size if j == i else 2 for j in range(n)))
            resized = op(columns.contiguous(), outs, *corners, *scales).movedim(2 + i, 1)
        return resized.reshape(size, out, -1)[:, :, 0].numpy().T  # type: ignore[no-any-return]


def _upsampling(
    b: AtenBuilder, ins: Sequence[Dimension], outs: Sequence[Dimension], options: Sequence[Any]
) -> Upsampling:
    name = b.call_node.target.__name__.split(".")[0].removesuffix("_backward")
    n, mode = _MODES[name]
    align_corners = False
    if mode != b"nearest":
        align_corners, *options = options
    scales = (*options, *(None,) * (n - len(options)))
    return Upsampling(name, tuple(ins), tuple(outs), align_corners, scales)


@lowers(*(f"{name}.default" for name in _MODES))
def _(b: AtenBuilder, x: Value, output_size: Sequence[Dimension], *options: Any) -> Value:
    dtype = x.tensor.dtype
    up = _upsampling(b, b.fake(0).shape[2:], output_size, options)
    x = b.as_f32(x)
    if _has_resize(up):
        return b.cast(_resized(b, x, up).outputs[0], dtype)
    if not up.is_static:
        raise Unsupported(f"{up.name} of an open size")
    for i in range(len(up.outs)):
        x = apply_along(b, x, up.matrix(i), 2 + i)
    return b.cast(x, dtype)


@lowers(*(f"{name}_backward.default" for name in _MODES))
def _(
    b: AtenBuilder,
    dy: Value,
    output_size: Sequence[Dimension],
    input_size: Sequence[Dimension],
    *options: Any,
) -> Value:
    dtype = dy.tensor.dtype
    up = _upsampling(b, input_size[2:], output_size, options)
    dx = b.as_f32(dy)
    if up.is_static:
        for i in reversed(range(len(up.outs))):
            dx = _gradient_along(b, dx, up.matrix(i), 2 + i)
    elif _has_resize(up):
        # The gradient rule reads the shape of the input alone.
        x = b.Expand(b.const(0, F32), b.sizes(input_size))
        (grad,) = b.gradients(_resized(b, x, up), dx, [True])
        assert grad is not None
        dx = grad
    else:
        raise Unsupported(f"{up.name}_backward of an open size")
    return b.cast(dx, dtype)


def _gradient_along(b: AtenBuilder, dy: Value, matrix: Matrix, axis: int) -> Value:
    """Return the gradient along one axis; of nearest by a whole factor, the sum of each group."""
    out, size = matrix.shape
    factor = out // size if size else 0
    if factor < 2 or not np.array_equal(matrix, np.repeat(np.eye(size), factor, axis=0)):
        return apply_along(b, dy, np.ascontiguousarray(matrix.T), axis)
    shape, rank = b.Shape(dy), dy.tensor.rank
    before, after = (
        b.Slice(shape, b.ints(0), b.ints(axis)),
        b.Slice(shape, b.ints(axis + 1), b.ints(rank)),
    )
    groups = b.Reshape(dy, b.Concat(before, b.ints(size, factor), after, axis=0))
    return b.ReduceSum(groups, b.ints(axis + 1), keepdims=0)


def _has_resize(up: Upsampling) -> bool:
    """Whether Resize computes the same: its scales are float32, and its rounding differs a little.

    Nearest neighbours must not depend on rounding, so there only whole factors are taken.
    """
    if not up.mode:
        return False
    if up.mode == b"nearest":
        if up.is_static:
            pairs = [(int(i), int(o)) for i, o in zip(up.ins, up.outs, strict=True)]
            is_whole = all(i and o % i == 0 for i, o in pairs)
            return is_whole and all(
                np.array_equal(up.matrix(k), np.repeat(np.eye(i), o // i, axis=0))
                for k, (i, o) in enumerate(pairs)
            )
        return all(s is not None and float(s).is_integer() for s in up.scales)
    return all(s is None or up.align_corners or float(np.float32(s)) == s for s in up.scales)


def _resized(b: AtenBuilder, x: Value, up: Upsampling) -> Node:
    """Add the Resize of float32 images."""
    axes = tuple(range(2, 2 + len(up.outs)))
    attrs: dict[str, Any] = {"mode": up.mode, "axes": axes}
    scales: Value | None = None
    if up.mode == b"nearest":
        attrs |= {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    elif up.align_corners:
        attrs["coordinate_transformation_mode"] = b"align_corners"
    elif None not in up.scales:
        scales = b.const(up.scales, F32)
    return b.node("Resize", x, None, scales, None if scales else b.sizes(up.outs), **attrs)

"""Windows and pieces of images: crops of boxes, slices, and pads known late."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dtype import F16, F32, F64, I32, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional, required
from sardonyx.ops.attention.heads import same_dims, same_rank
from sardonyx.ops.conv import CONV, conv_transpose
from sardonyx.ops.rules import Array, axis_of, in_wide

_FLOATS: Final = frozenset((F16, F32, F64))

crop: Final = Op(
    "CropAndResize",
    1,
    "X:T rois:T batch_indices:I crop_size:I",
    "Y:T",
    domain=MICROSOFT,
    attrs={"extrapolation_value": 0.0, "mode": b"bilinear"},
    types={"T": _FLOATS, "I": frozenset((I32,))},
)


@crop.infer
def _(g: Scope, x: Fact, rois: Fact, batches: Fact, size: Fact, **attrs: Any) -> Fact:
    if attrs["mode"] not in (b"bilinear", b"nearest"):
        raise InvalidGraph(f"mode {attrs['mode']!r} is neither bilinear nor nearest")
    same_rank(4, X=x)
    same_rank(2, rois=rois)
    same_dims(g, rois.dims, (rois.dims[0], 4), "rois")
    same_dims(g, batches.dims, (rois.dims[0],), "batch_indices")
    same_dims(g, size.dims, (2,), "crop_size")
    height, width = size.sym or (g.fresh("height"), g.fresh("width"))
    for number in (height, width) if size.sym else ():
        g.at_least(number, 1, "crop_size is 1 or more")
    return x.shaped((rois.dims[0], x.dims[1], height, width))


@crop.reference
@in_wide
def _(x: Array, rois: Array, batches: Array, size: Array, **attrs: Any) -> Array:
    wrong = batches[(batches < 0) | (batches >= x.shape[0])]
    if wrong.size:
        raise InvalidArgument(f"batch index {int(wrong[0])} is outside [0, {x.shape[0]})")
    if size.min() < 1:
        raise InvalidArgument(f"crop_size {size.tolist()} is not 1 or more")
    height, width = size.tolist()
    y = np.full((len(rois), x.shape[1], height, width), attrs["extrapolation_value"], x.dtype)
    for k, (top, left, bottom, right) in enumerate(rois):
        rows = _places(top, bottom, x.shape[2], height, x.dtype)
        columns = _places(left, right, x.shape[3], width, x.dtype)
        inside = [
            (p >= 0) & (p <= n - 1) for p, n in zip((rows, columns), x.shape[2:], strict=True)
        ]
        found = _sampled(x[batches[k]], rows[inside[0]], columns[inside[1]], attrs["mode"])
        y[k][:, inside[0][:, None] & inside[1]] = found.reshape(
            x.shape[1], found.shape[1] * found.shape[2]
        )
    return y


def _places(first: Any, last: Any, size: int, count: int, dtype: Any) -> Array:
    """Where along an axis the samples of a box lie: its corners are the outermost."""
    kind = dtype.type
    if count == 1:
        return np.asarray([kind(0.5) * (first + last) * kind(size - 1)])
    step = (last - first) * kind(size - 1) / kind(count - 1)
    return np.asarray(first * kind(size - 1) + np.arange(count).astype(dtype) * step)


def _sampled(image: Array, rows: Array, columns: Array, mode: bytes) -> Array:
    if mode == b"nearest":
        i, j = (np.floor(p + p.dtype.type(0.5)).astype(int) for p in (rows, columns))
        return image[:, i[:, None], j]
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    bottom, right = np.ceil(rows).astype(int), np.ceil(columns).astype(int)
    down, across = (rows - top)[:, None], columns - left
    upper, lower = (
        image[:, i[:, None], left] * (1 - across) + image[:, i[:, None], right] * across
        for i in (top, bottom)
    )
    return np.asarray(upper * (1 - down) + lower * down)


unfold: Final = Op(
    "UnfoldTensor",
    1,
    "input:T",
    "output:T",
    domain=MICROSOFT,
    attrs={"dim": -1, "size": required("int"), "step": 1},
)


@unfold.infer
def _(g: Scope, x: Fact, *, dim: int, size: int, step: int) -> Fact:
    axis = axis_of(dim, x.rank, "dim")
    if size < 1 or step < 1:
        raise InvalidGraph(f"size {size} and step {step} must be 1 or more")
    g.at_least(x.dims[axis], size, "a slice is longer than the dim")
    count = (x.dims[axis] - size) // step + 1
    return x.shaped((*x.dims[:axis], count, *x.dims[axis + 1 :], size))


@unfold.reference
def _(x: Array, *, dim: int, size: int, step: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, size, dim)
    steps = [slice(None)] * x.ndim
    steps[dim % x.ndim] = slice(None, None, step)
    return np.ascontiguousarray(windows[(*steps, slice(None))])


late_pads: Final = Op(
    "ConvTransposeWithDynamicPads",
    1,
    "X:T W:T Pads:P? B:T?",
    "Y:T",
    domain=MICROSOFT,
    attrs={k: v for k, v in CONV.items() if k != "pads"} | {"output_padding": optional("ints")},
    types={"T": _FLOATS, "P": frozenset((I64,))},
)


@late_pads.infer
def _(g: Scope, x: Fact, w: Fact, pads: Fact | None, b: Fact | None, **attrs: Any) -> Fact:
    rule = conv_transpose.infer_rule
    assert rule is not None
    known = None if pads is None else pads.ints
    y: Fact = rule(g, x, w, b, **attrs, pads=known, output_shape=None)
    if pads is None or known is not None:
        return y
    same_dims(g, pads.dims, (2 * (x.rank - 2),), "Pads")
    return y.shaped((*y.dims[:2], *(g.fresh("size") for _ in y.dims[2:])))


@late_pads.reference
def _(x: Array, w: Array, pads: Array | None = None, b: Array | None = None, **attrs: Any) -> Any:
    rule = conv_transpose.reference_rule
    assert rule is not None
    given = None if pads is None else tuple(pads.tolist())
    return rule(x, w, b, **attrs, pads=given, output_shape=None)


OPS: Final = (crop, unfold, late_pads)

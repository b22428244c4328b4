"""Gradients of ops that move elements."""

from __future__ import annotations

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.ops.gather.gradient import put
from sardonyx.ops.gradients import GradientBuilder, decompose, gradient, int64s, ranked
from sardonyx.ops.inference import axes_of

Grads = list[Value | None]


@gradient("Transpose")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    rank = ranked(given(node, 0)).rank
    perm = node.attrs["perm"] or tuple(reversed(range(rank)))
    return b.Transpose(dy, perm=tuple(int(i) for i in np.argsort(perm)))


@gradient("Concat")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    axis = node.attrs["axis"]
    if len(node.inputs) == 1:
        return [dy]
    place = b.ints(axis)
    sizes = b.Concat(
        *(b.Gather(b.shape(given(node, i)), place) for i in range(len(node.inputs))), axis=0
    )
    return list(b.node("Split", dy, sizes, axis=axis, outputs=len(node.inputs)).outputs)


@gradient("Split")
def _(b: GradientBuilder, node: Node, *grads: Value | None) -> Value:
    pairs = zip(grads, node.outputs, strict=True)
    return b.Concat(*(b.zeros(y) if dy is None else dy for dy, y in pairs), axis=node.attrs["axis"])


@gradient("Slice")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, starts = given(node, 0), given(node, 1)
    rank = ranked(x).rank
    axes, steps = optional(node, 3), optional(node, 4)
    n_axes = ranked(starts).static
    if axes is None and n_axes is not None:
        axes = b.ints(*range(n_axes[0]))
    known = None if axes is None else axes.tensor.ints
    strides = (1,) if steps is None else steps.tensor.ints
    if known is None or strides is None:
        raise NotImplemented(
            "the axes or steps of a Slice are known only when it runs, and its gradient needs them",
            hint="make them constants of the model",
        )
    along = axes_of(known, rank)
    if all(step == 1 for step in strides):
        return _padded(b, node, dy, along)
    return _scattered(b, node, dy, along)


def _padded(b: GradientBuilder, node: Node, dy: Value, axes: tuple[int, ...]) -> Value:
    """Zeros before and behind what a Slice kept."""
    x, starts = given(node, 0), int64s(b, given(node, 1))
    over = b.ints(*axes)
    sizes = b.Gather(b.shape(x), over)
    begins = b.Where(b.Less(starts, 0), b.Add(starts, sizes), starts)
    begins = b.Min(b.Max(begins, b.const(0, I64)), sizes)
    ends = b.Sub(b.Sub(sizes, begins), b.Gather(b.shape(dy), over))
    padded = b.Pad(dy, b.Concat(begins, ends, axis=0), None, over)
    return b.reshape(padded, x)


def _scattered(b: GradientBuilder, node: Node, dy: Value, axes: tuple[int, ...]) -> Value:
    """What a Slice with steps kept, put back along one axis after the other."""
    x, starts, ends, _, steps = (
        int64s(b, v) if i and v is not None else v
        for i, v in enumerate((*node.inputs, None, None)[:5])
    )
    assert x is not None
    order = list(enumerate(axes))
    for i, axis in reversed(order):
        # The other axes are as long as they are in the gradient so far, this one as in x.
        size = b.Slice(b.shape(x), b.ints(axis), b.ints(axis + 1))
        places = b.Range(b.const(0, I64), b.Squeeze(size, b.ints(0)), b.const(1, I64))
        one = [
            None if v is None else b.Slice(v, b.ints(i), b.ints(i + 1))
            for v in (starts, ends, steps)
        ]
        index = b.Slice(places, one[0], one[1], b.ints(0), one[2])
        before, behind = (
            b.Slice(b.shape(dy), b.ints(0), b.ints(axis)),
            b.Slice(b.shape(dy), b.ints(axis + 1), b.ints(ranked(x).rank)),
        )
        room = b.Expand(b.const(0, dy.tensor.dtype), b.Concat(before, size, behind, axis=0))
        dy = put(b, room, index, dy, axis)
    return dy


@gradient("Tile")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """Every axis as copies of itself, and the copies added up."""
    x, repeats = given(node, 0), given(node, 1)
    rank = ranked(x).rank
    column = b.ints(1)
    pairs = b.Concat(b.Unsqueeze(repeats, column), b.Unsqueeze(b.shape(x), column), axis=1)
    copies = b.Reshape(dy, b.Reshape(pairs, b.ints(-1)), allowzero=1)
    return b.reshape(b.ReduceSum(copies, b.ints(*range(0, 2 * rank, 2)), keepdims=0), x)


@gradient("Pad")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, pads, value, axes = given(node, 0), given(node, 1), optional(node, 2), optional(node, 3)
    pads = int64s(b, pads)
    if node.attrs["mode"] == b"constant":
        dx = b.reshape(b.Pad(dy, b.Neg(pads), None, axes), x)
        if value is None or not b.wants(value):
            return [dx]
        rest = b.Sub(b.ReduceSum(dy, keepdims=0), b.ReduceSum(dx, keepdims=0))
        return [dx, None, b.reshape(rest, value)]
    return [_mirrored(b, node, dy, pads)]


def _mirrored(b: GradientBuilder, node: Node, dy: Value, pads: Value) -> Value:
    """Pads that show elements again: the places of each axis, padded alike, say which."""
    x, axes = given(node, 0), optional(node, 3)
    rank = ranked(x).rank
    known = tuple(range(rank)) if axes is None else axes.tensor.ints
    if known is None:
        raise NotImplemented(
            "the axes of a Pad are known only when it runs",
            hint="make them a constant of the model",
        )
    for i, axis in enumerate(axes_of(known, rank)):
        size = b.Slice(b.shape(x), b.ints(axis), b.ints(axis + 1))
        places = b.Range(b.const(0, I64), b.Squeeze(size, b.ints(0)), b.const(1, I64))
        own = b.Gather(pads, b.ints(i, i + len(known)))
        index = b.Pad(places, own, mode=node.attrs["mode"])
        before, behind = (
            b.Slice(b.shape(dy), b.ints(0), b.ints(axis)),
            b.Slice(b.shape(dy), b.ints(axis + 1), b.ints(rank)),
        )
        room = b.Expand(b.const(0, dy.tensor.dtype), b.Concat(before, size, behind, axis=0))
        dy = put(b, room, index, dy, axis)
    return dy


@gradient("Trilu")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return b.Trilu(dy, *node.inputs[1:], upper=node.attrs["upper"])


@decompose("DepthToSpace")
def _(b: GradientBuilder, node: Node) -> Value:
    x, block = given(node, 0), node.attrs["blocksize"]
    n, c, h, w = (b.Slice(b.shape(x), b.ints(i), b.ints(i + 1)) for i in range(4))
    deep, side = b.Div(c, block * block), b.ints(block)
    is_depth = node.attrs["mode"] == b"DCR"
    parts_of = (n, side, side, deep, h, w) if is_depth else (n, deep, side, side, h, w)
    split = b.Reshape(x, b.Concat(*parts_of, axis=0))
    perm = (0, 3, 4, 1, 5, 2) if is_depth else (0, 1, 4, 2, 5, 3)
    shape = b.Concat(n, deep, b.Mul(h, block), b.Mul(w, block), axis=0)
    return b.Reshape(b.Transpose(split, perm=perm), shape)

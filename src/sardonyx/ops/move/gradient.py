"""Gradients of ops that move elements."""

from __future__ import annotations

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.gather.gradient import scatter_add
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, gradient, ranked
from sardonyx.ops.inference import axes_of

Grads = list[Value | None]


@gradient("Transpose")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    rank = ranked(input_of(node, 0)).rank
    perm = node.attrs["perm"] or tuple(reversed(range(rank)))
    return b.Transpose(dy, perm=tuple(int(i) for i in np.argsort(perm)))


@gradient("Concat")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    axis = node.attrs["axis"]
    if len(node.inputs) == 1:
        return [dy]
    shapes = [b.shape(input_of(node, i)) for i in range(len(node.inputs))]
    sizes = b.Concat(*(b.Gather(shape, b.ints(axis)) for shape in shapes), axis=0)
    return list(b.node("Split", dy, sizes, axis=axis, outputs=len(node.inputs)).outputs)


@gradient("Split")
def _(b: GradientBuilder, node: Node, *grads: Value | None) -> Value:
    pairs = zip(grads, node.outputs, strict=True)
    return b.Concat(*(b.zeros(y) if dy is None else dy for dy, y in pairs), axis=node.attrs["axis"])


@gradient("Slice")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, starts = input_of(node, 0), input_of(node, 1)
    rank = ranked(x).rank
    axes, steps = optional_input(node, 3), optional_input(node, 4)
    n_axes = ranked(starts).static
    if axes is None and n_axes is not None:
        axes = b.ints(*range(n_axes[0]))
    static_axes = None if axes is None else axes.tensor.ints
    strides = (1,) if steps is None else steps.tensor.ints
    if static_axes is None or strides is None:
        raise NotImplemented(
            "the axes or steps of a Slice are known only when it runs, and its gradient needs them",
            hint="make them constants of the model",
        )
    along = axes_of(static_axes, rank)
    if all(step == 1 for step in strides):
        return _pad_back(b, node, dy, along)
    return _scatter_back(b, node, dy, along)


def _pad_back(b: GradientBuilder, node: Node, dy: Value, axes: tuple[int, ...]) -> Value:
    """Pad the gradient of a Slice with step 1 with zeros on both sides."""
    x, starts = input_of(node, 0), b.cast(input_of(node, 1), I64)
    over = b.ints(*axes)
    sizes = b.Gather(b.shape(x), over)
    # Start positions, counted from the front and clamped as Slice does; the rest pads the end.
    begins = b.Where(b.Less(starts, 0), b.Add(starts, sizes), starts)
    begins = b.Min(b.Max(begins, b.const(0, I64)), sizes)
    ends = b.Sub(b.Sub(sizes, begins), b.Gather(b.shape(dy), over))
    padded = b.Pad(dy, b.Concat(begins, ends, axis=0), None, over)
    return b.reshape(padded, x)


def _scatter_back(b: GradientBuilder, node: Node, dy: Value, axes: tuple[int, ...]) -> Value:
    """Scatter the gradient of a Slice with other steps, one axis after the other."""
    x = input_of(node, 0)
    starts_ends_steps = (optional_input(node, slot) for slot in (1, 2, 4))
    bounds = [None if v is None else b.cast(v, I64) for v in starts_ends_steps]
    for i, axis in reversed(list(enumerate(axes))):
        start, end, step = (None if v is None else b.element(v, i) for v in bounds)
        index = b.Slice(_positions(b, x, axis), start, end, b.ints(0), step)
        dy = _scatter_axis(b, x, dy, index, axis)
    return dy


def _positions(b: GradientBuilder, x: Value, axis: int) -> Value:
    """Return the positions 0, 1, ... along an axis."""
    return b.arange(b.length(x, axis))


def _scatter_axis(b: GradientBuilder, x: Value, dy: Value, index: Value, axis: int) -> Value:
    """Add slices of dy to zeros at indices along an axis.

    That axis has its size in `x`; the others have their size in the gradient so far.
    """
    sizes = b.shape(dy)
    before = b.Slice(sizes, b.ints(0), b.ints(axis))
    after = b.Slice(sizes, b.ints(axis + 1), b.ints(ranked(x).rank))
    shape = b.Concat(before, b.element(b.shape(x), axis), after, axis=0)
    zeros = b.Expand(b.const(0, dy.tensor.dtype), shape)
    return scatter_add(b, zeros, index, dy, axis)


@gradient("Tile")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """Reshape every axis to (repeats, size) and sum over the repeats."""
    x, repeats = input_of(node, 0), input_of(node, 1)
    rank = ranked(x).rank
    column = b.ints(1)
    pairs = b.Concat(b.Unsqueeze(repeats, column), b.Unsqueeze(b.shape(x), column), axis=1)
    copies = b.Reshape(dy, b.Reshape(pairs, b.ints(-1)), allowzero=1)
    return b.reshape(b.ReduceSum(copies, b.ints(*range(0, 2 * rank, 2)), keepdims=0), x)


@gradient("Pad")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, value, axes = input_of(node, 0), optional_input(node, 2), optional_input(node, 3)
    pads = b.cast(input_of(node, 1), I64)
    if node.attrs["mode"] == b"constant":
        dx = b.reshape(b.Pad(dy, b.Neg(pads), None, axes), x)
        if value is None or not b.wants(value):
            return [dx]
        rest = b.Sub(b.ReduceSum(dy, keepdims=0), b.ReduceSum(dx, keepdims=0))
        return [dx, None, b.reshape(rest, value)]
    return [_padding_gradient(b, node, dy, pads)]


def _padding_gradient(b: GradientBuilder, node: Node, dy: Value, pads: Value) -> Value:
    """Gradient of the modes that repeat elements: padding each axis's indices gives the sources."""
    x, axes = input_of(node, 0), optional_input(node, 3)
    rank = ranked(x).rank
    static_axes = tuple(range(rank)) if axes is None else axes.tensor.ints
    if static_axes is None:
        raise NotImplemented(
            "the axes of a Pad are known only when it runs",
            hint="make them a constant of the model",
        )
    for i, axis in enumerate(axes_of(static_axes, rank)):
        both_ends = b.Gather(pads, b.ints(i, i + len(static_axes)))
        index = b.Pad(_positions(b, x, axis), both_ends, mode=node.attrs["mode"])
        dy = _scatter_axis(b, x, dy, index, axis)
    return dy


@gradient("Trilu")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return b.Trilu(dy, *node.inputs[1:], upper=node.attrs["upper"])


@gradient("ReverseSequence")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """Reversing again: the op is its own inverse."""
    return b.ReverseSequence(dy, input_of(node, 1), **node.attrs)


@decompose("CenterCropPad")
def _(b: GradientBuilder, node: Node) -> Value:
    """Slice the middle of what is too long, then pad what is too short."""
    x, wanted = input_of(node, 0), b.cast(input_of(node, 1), I64)
    rank, axes = ranked(x).rank, node.attrs["axes"]
    over = b.ints(*axes_of(range(rank) if axes is None else axes, rank))
    sizes = b.Gather(b.shape(x), over)
    common = b.Min(sizes, wanted)
    starts, before = (b.Div(b.Sub(whole, common), 2) for whole in (sizes, wanted))
    middle = b.Slice(x, starts, b.Add(starts, common), over)
    after = b.Sub(b.Sub(wanted, common), before)
    return b.Pad(middle, b.Concat(before, after, axis=0), None, over)


@decompose("DepthToSpace")
def _(b: GradientBuilder, node: Node) -> Value:
    x, block = input_of(node, 0), node.attrs["blocksize"]
    n, c, h, w = (b.element(b.shape(x), i) for i in range(4))
    depth, side = b.Div(c, block * block), b.ints(block)
    is_depth = node.attrs["mode"] == b"DCR"
    split_shape = (n, side, side, depth, h, w) if is_depth else (n, depth, side, side, h, w)
    split = b.Reshape(x, b.Concat(*split_shape, axis=0))
    perm = (0, 3, 4, 1, 5, 2) if is_depth else (0, 1, 4, 2, 5, 3)
    shape = b.Concat(n, depth, b.Mul(h, block), b.Mul(w, block), axis=0)
    return b.Reshape(b.Transpose(split, perm=perm), shape)


@decompose("SpaceToDepth")
def _(b: GradientBuilder, node: Node) -> Value:
    x, block = input_of(node, 0), node.attrs["blocksize"]
    n, c, h, w = (b.element(b.shape(x), i) for i in range(4))
    side, rows, columns = b.ints(block), b.Div(h, block), b.Div(w, block)
    split = b.Reshape(x, b.Concat(n, c, rows, side, columns, side, axis=0), allowzero=1)
    perm = (0, 3, 5, 1, 2, 4) if node.attrs["mode"] == b"DCR" else (0, 1, 3, 5, 2, 4)
    shape = b.Concat(n, b.Mul(c, block * block), rows, columns, axis=0)
    return b.Reshape(b.Transpose(split, perm=perm), shape, allowzero=1)

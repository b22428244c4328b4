"""Ops that move elements on the CPU: strided views where possible, else copies."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dim import Shape, Size, floor_div, least, maximum, minimum, symbols
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.inference import axes_of, axis_of
from sardonyx.place.lowered import Call, Lowered, Permuted, Sliced
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings, padded_inputs

_MODES: Final = {b"constant": 0, b"reflect": 1, b"edge": 2, b"wrap": 3}


def _fact(value: Value | None) -> Fact | None:
    return None if value is None else value.tensor


def follows(sizes: Shape, *known: Shape | None) -> bool:
    """Whether sizes depend on names in `known` alone: else only running the node reveals them."""
    names = {n for shape in known for s in shape or () for n in symbols(s)}
    return all(symbols(s) <= names for s in sizes)


def transpose(node: Node) -> Lowered:
    x = input_of(node, 0)
    perm = node.attrs["perm"]
    axes = range(x.tensor.rank)[::-1] if perm is None else axes_of(perm, x.tensor.rank)
    return Permuted(x, tuple(axes))


def concat(node: Node) -> Lowered:
    rank = node.outputs[0].tensor.rank
    axis = axis_of(node.attrs["axis"], rank)
    # Rows appended to a KV cache; a block has no capacity along the last axis.
    grows = ((0, 0, axis),) if axis + 1 < rank else ()
    return Call("concat", node.inputs, (axis,), grows=grows, is_concat=True, writes_rows=True)


def split(node: Node) -> Lowered:
    x, sizes = input_of(node, 0), _fact(optional_input(node, 1))
    axis = axis_of(node.attrs["axis"], x.tensor.rank)
    if sizes is not None and sizes.sym is None:
        return Call("split_at_run", node.inputs, (axis,))
    # Views, not copies: readers that need contiguous bytes copy themselves.
    starts: list[Shape] = []
    begin: Size = 0
    for part in node.outputs:
        starts.append(tuple(begin if i == axis else 0 for i in range(x.tensor.rank)))
        begin = begin + part.tensor.dims[axis]
    return Sliced(x, tuple(starts), (1,) * x.tensor.rank)


def _slice_begin(start: Size, d: Size, step: int) -> Size:
    """Return the first index of a slice of `d` elements: negative starts count from the end.

    The sign of a symbolic start may be open. Inference has settled which ones are possible.
    """
    if least(start) >= -1 and not (isinstance(start, int) and start < 0):
        begin: Size = start
    elif least(-start) >= 0:
        begin = maximum(d + start, 0)
    else:
        is_from_front = minimum(maximum(start + 1, 0), 1)  # 1 if start >= 0, else 0
        begin = maximum(start + d * (1 - is_from_front), 0)
    # Clamped as the spec has it: a negative step begins at the last element at most.
    return minimum(begin, d if step > 0 else maximum(d - 1, 0))


def slice_(node: Node) -> Lowered:
    x, out = input_of(node, 0), node.outputs[0].tensor
    starts, ends = input_of(node, 1).tensor, input_of(node, 2).tensor
    axes, steps = _fact(optional_input(node, 3)), _fact(optional_input(node, 4))
    where = tuple(range(len(starts.sym or ()))) if axes is None else axes.ints
    strides = (1,) * len(starts.sym or ()) if steps is None else steps.ints
    if starts.sym is None or ends.sym is None or where is None or strides is None:
        return Call("slice_at_run", node.inputs)
    if not follows(out.dims, x.tensor.dims, starts.sym, ends.sym):
        return Call("slice_at_run", node.inputs)
    begins: list[Size] = [0] * x.tensor.rank
    by_axis = [1] * x.tensor.rank
    for axis, start, stride in zip(axes_of(where, x.tensor.rank), starts.sym, strides, strict=True):
        begins[axis] = _slice_begin(start, x.tensor.dims[axis], stride)
        by_axis[axis] = stride
    return Sliced(x, (tuple(begins),), tuple(by_axis))


def tile(node: Node) -> Lowered:
    x, repeats = input_of(node, 0), input_of(node, 1)
    return Call("tile_at_run", (x, repeats)) if repeats.tensor.sym is None else Call("tile", (x,))


def pad(node: Node) -> Lowered:
    x, pads, value = input_of(node, 0), input_of(node, 1), optional_input(node, 2)
    axes = _fact(optional_input(node, 3))
    where = tuple(range(x.tensor.rank)) if axes is None else axes.ints
    mode = _MODES[node.attrs["mode"]]
    if pads.tensor.sym is None or where is None:
        return Call("pad_at_run", padded_inputs(node, 4), (mode,))
    before: list[Size] = [0] * x.tensor.rank
    # `pads` lists the amounts before all axes, then those after, which the output's shape has.
    for axis, amount in zip(axes_of(where, x.tensor.rank), pads.tensor.sym, strict=False):
        before[axis] = amount
    return Call("pad", (x, value), (mode, *before))


def center_crop_pad(node: Node) -> Lowered | No:
    x, target, out = input_of(node, 0), input_of(node, 1), node.outputs[0].tensor
    if target.tensor.sym is None:
        return No("the shape is known only at run time")
    # A crop is a negative padding.
    before = [
        floor_div(maximum(want - have, 0), 2) - floor_div(maximum(have - want, 0), 2)
        for have, want in zip(x.tensor.dims, out.dims, strict=True)
    ]
    return Call("pad", (x, None), (_MODES[b"constant"], *before))


# `rearrange` reshapes to six axes (the first six ints), permutes them (the last six), and reshapes.
def depth_to_space(node: Node) -> Lowered:
    x = input_of(node, 0)
    n, c, h, w = x.tensor.dims
    b = node.attrs["blocksize"]
    deep = floor_div(c, b * b)
    if node.attrs["mode"] == b"DCR":
        return Call("rearrange", (x,), (n, b, b, deep, h, w, 0, 3, 4, 1, 5, 2))
    return Call("rearrange", (x,), (n, deep, b, b, h, w, 0, 1, 4, 2, 5, 3))


def space_to_depth(node: Node) -> Lowered:
    x = input_of(node, 0)
    n, c, h, w = x.tensor.dims
    b = node.attrs["blocksize"]
    perm = (0, 3, 5, 1, 2, 4) if node.attrs["mode"] == b"DCR" else (0, 1, 3, 5, 2, 4)
    return Call("rearrange", (x,), (n, c, floor_div(h, b), b, floor_div(w, b), b, *perm))


def reverse_sequence(node: Node) -> Lowered:
    return Call("reverse_sequence", node.inputs, (int(node.attrs["batch_axis"] == 0),))


def trilu(node: Node) -> Lowered:
    return Call("trilu", padded_inputs(node, 2), (node.attrs["upper"],))


LOWERINGS: Final[Lowerings] = {
    ("", "Transpose"): transpose,
    ("", "Concat"): concat,
    ("", "Split"): split,
    ("", "Slice"): slice_,
    ("", "Tile"): tile,
    ("", "Pad"): pad,
    ("", "CenterCropPad"): center_crop_pad,
    ("", "DepthToSpace"): depth_to_space,
    ("", "SpaceToDepth"): space_to_depth,
    ("", "ReverseSequence"): reverse_sequence,
    ("", "Trilu"): trilu,
}

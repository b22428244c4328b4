"""Older forms of the ops that move elements."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import I64
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, as_scalar, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Concat", below=4)
def concat_axis_had_a_default(b: Builder, node: OldNode) -> Any:
    """The axis could be left out, and was 1 then."""
    return b.Concat(*node.inputs, axis=node.attr("axis", 1))


@upgrade("Split", below=18)
def parts_become_an_input(b: Builder, node: OldNode) -> Any:
    """The sizes were an attribute; without any, the parts were as many as the outputs."""
    axis, sizes = node.attr("axis", 0), node.input(1)
    if sizes is not None and node.version < 2:
        sizes = b.Cast(sizes, to=I64.onnx)
    if sizes is None and node.attr("split"):
        sizes = b.ints(*node.attr("split"))
    count = node.n_outputs if sizes is None else None
    inputs = (node.needed(0),) if sizes is None else (node.needed(0), sizes)
    return b.node("Split", *inputs, outputs=node.n_outputs, axis=axis, num_outputs=count).outputs


@upgrade("Slice", below=10)
def bounds_become_inputs(b: Builder, node: OldNode) -> Any:
    """Starts, ends and axes were attributes."""
    starts, ends, axes = node.attr("starts"), node.attr("ends"), node.attr("axes")
    if starts is None or ends is None:
        raise InvalidGraph(f"Slice of opset {node.version} needs the attributes starts and ends")
    bounds = [b.ints(*starts), b.ints(*ends)]
    return b.Slice(node.needed(0), *bounds, *([] if axes is None else [b.ints(*axes)]))


@upgrade("Tile", below=6)
def one_axis_was_tiled(b: Builder, node: OldNode) -> Any:
    """The inputs were the number of copies and their axis."""
    x, tiles, axis = node.given(3)
    times, where = (b.Reshape(b.Cast(v, to=I64.onnx), b.ints(-1)) for v in (tiles, axis))
    ones = b.Expand(b.ints(1), b.Shape(b.Shape(x)))
    return b.Tile(x, b.ScatterElements(ones, where, times))


@upgrade("Pad", below=11)
def pads_become_an_input(b: Builder, node: OldNode) -> Any:
    """Pads and value were attributes; the pads had another name at first."""
    pads = node.attr("pads", node.attr("paddings"))
    if pads is None:
        raise InvalidGraph(f"Pad of opset {node.version} needs the attribute pads")
    value = b.CastLike(b.const(np.float32(node.attr("value", 0.0))), node.needed(0))
    return b.Pad(node.needed(0), b.ints(*pads), value, mode=node.attr("mode", b"constant"))


@upgrade("Trilu", below=ANY, domain=MICROSOFT)
def trilu_is_standard(b: Builder, node: OldNode) -> Any:
    return b.Trilu(*node.inputs, **node.attrs)


@upgrade("Pad", below=ANY, domain=MICROSOFT)
def pads_may_be_a_row(b: Builder, node: OldNode) -> Any:
    pads = b.Reshape(node.input(1), b.ints(-1))
    return b.Pad(node.input(0), pads, as_scalar(b, node.input(2)), **node.attrs)


_END: Final = np.iinfo(np.int64).max


@upgrade("Crop", below=ANY)
def crop(b: Builder, node: OldNode) -> Any:
    """Cuts borders off, or a piece of given size out, of images with the channels second."""
    (border,) = node.needed_attrs("border")
    size = node.attr("scale")
    if len(border) != 4 or (size is not None and len(size) != 2):
        raise InvalidGraph(f"border {border} has 4 numbers and scale {size} 2: height and width")
    left, top, right, bottom = border
    ends = [-e or _END for e in (bottom, right)]
    if size is not None:
        ends = [top + size[0], left + size[1]]
    return b.Slice(node.input(0), b.ints(top, left), b.ints(*ends), b.ints(2, 3))


@upgrade("DynamicSlice", below=ANY)
def dynamic_slice(b: Builder, node: OldNode) -> Any:
    """What Slice became in opset 10."""
    return b.Slice(*node.inputs)


UPGRADES: Final = (
    *concat_axis_had_a_default,
    *parts_become_an_input,
    *bounds_become_inputs,
    *one_axis_was_tiled,
    *pads_become_an_input,
    *trilu_is_standard,
    *pads_may_be_a_row,
    *crop,
    *dynamic_slice,
)

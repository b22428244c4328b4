"""Upgrades of the ops that move elements."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import I64
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades, as_scalar, number_like
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("Concat", below=4)
def concat_axis_had_a_default(b: Builder, node: OldNode) -> Any:
    """Before opset 4 the axis was 1 by default; it is required now."""
    return b.Concat(*node.inputs, axis=node.attr("axis", 1))


@UPGRADES.rule("Split", below=18)
def split_sizes_become_an_input(b: Builder, node: OldNode) -> Any:
    """The sizes were an attribute; without them, the split is into as many parts as outputs."""
    axis, sizes = node.attr("axis", 0), node.input(1)
    if sizes is not None and node.version < 2:
        sizes = b.Cast(sizes, to=I64.onnx)
    if sizes is None and node.attr("split"):
        sizes = b.ints(*node.attr("split"))
    count = node.n_outputs if sizes is None else None
    inputs = [node.required_input(0)] + ([] if sizes is None else [sizes])
    return b.node("Split", *inputs, outputs=node.n_outputs, axis=axis, num_outputs=count).outputs


@UPGRADES.rule("Slice", below=10)
def slice_bounds_become_inputs(b: Builder, node: OldNode) -> Any:
    """Starts, ends and axes were attributes."""
    bounds = node.required_attrs("starts", "ends")
    if "axes" in node.attrs:
        bounds.append(node.attrs["axes"])
    return b.Slice(node.required_input(0), *(b.ints(*numbers) for numbers in bounds))


@UPGRADES.rule("Tile", below=6)
def tile_one_axis(b: Builder, node: OldNode) -> Any:
    """Before opset 6 the inputs were one number of copies and its axis."""
    x, tiles, axis = node.checked_inputs(3)
    times, where = (b.Reshape(b.Cast(v, to=I64.onnx), b.ints(-1)) for v in (tiles, axis))
    ones = b.Expand(b.ints(1), b.Shape(b.Shape(x)))
    return b.Tile(x, b.ScatterElements(ones, where, times))


@UPGRADES.rule("Pad", below=11)
def pads_become_an_input(b: Builder, node: OldNode) -> Any:
    """Pads and value were attributes; opset 1 called the pads paddings."""
    name = next((n for n in ("pads", "paddings") if n in node.attrs), "pads")
    (pads,) = node.required_attrs(name)
    x = node.required_input(0)
    value = number_like(b, node.attr("value", 0.0), x)
    return b.Pad(x, b.ints(*pads), value, mode=node.attr("mode", b"constant"))


@UPGRADES.rule("Trilu", domain=MICROSOFT)
def contrib_trilu(b: Builder, node: OldNode) -> Any:
    return b.Trilu(*node.inputs, **node.attrs)


@UPGRADES.rule("Pad", domain=MICROSOFT)
def contrib_pad(b: Builder, node: OldNode) -> Any:
    """Pads may have the shape [1, n], and the value the shape [1]."""
    pads = b.Reshape(node.input(1), b.ints(-1))
    return b.Pad(node.input(0), pads, as_scalar(b, node.input(2)), **node.attrs)


_END: Final = np.iinfo(np.int64).max


@UPGRADES.rule("Crop")
def crop(b: Builder, node: OldNode) -> Any:
    """Cut borders off NCHW images, or cut out a window of the size `scale`."""
    (border,) = node.required_attrs("border")
    size = node.attr("scale")
    if len(border) != 4 or (size is not None and len(size) != 2):
        raise InvalidGraph(f"border {border} has 4 numbers and scale {size} 2: height and width")
    left, top, right, bottom = border
    ends = [-e or _END for e in (bottom, right)]
    if size is not None:
        ends = [top + size[0], left + size[1]]
    return b.Slice(node.input(0), b.ints(top, left), b.ints(*ends), b.ints(2, 3))


@UPGRADES.rule("DynamicSlice")
def dynamic_slice(b: Builder, node: OldNode) -> Any:
    """The experimental op that became Slice of opset 10."""
    return b.Slice(*node.inputs)

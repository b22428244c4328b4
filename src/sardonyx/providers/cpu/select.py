"""TopK, NonMaxSuppression and NonZero on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import BOOL, F32, F64, INDEX, INTS, NUMBERS
from sardonyx.graph.graph import Node, input_of, optional_input
from sardonyx.ops.inference import axis_of
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings, direct, for_types


def _top_k(node: Node) -> Call | No:
    x, k = input_of(node, 0), input_of(node, 1)
    ints = (axis_of(node.attrs["axis"], x.tensor.rank), node.attrs["largest"])
    if k.tensor.sym is not None:  # K is the size of the output
        return Call("top_k", (x,), ints)
    if k.tensor.dtype not in INDEX:
        return No(f"no kernel for K of type {k.tensor.dtype}")
    return Call("top_k_open", (x, k), ints)


def _non_max(node: Node) -> Call | No:
    max_boxes = optional_input(node, 2)
    if max_boxes is not None and max_boxes.tensor.dtype not in INDEX:
        return No(f"no kernel for max_output_boxes_per_class of type {max_boxes.tensor.dtype}")
    floats = (*node.inputs[:2], *node.inputs[3:])  # boxes, scores and both thresholds
    if any(v is not None and v.tensor.dtype is not F32 for v in floats):
        return No("the kernel is for float32")
    return Call("non_max", node.inputs, (node.attrs["center_point_box"],))


LOWERINGS: Final[Lowerings] = {
    ("", "NonMaxSuppression"): _non_max,
    ("", "NonZero"): for_types(INTS | {BOOL, F32, F64}, direct("nonzero")),
    ("", "TopK"): for_types(NUMBERS, _top_k),
}

"""Reductions, ArgMax and ArgMin, and cumulative sums and products on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import BOOL, FLOATS, I8, I32, I64, NUMBERS, U8, U32, U64
from sardonyx.graph.graph import Node, input_of, optional_input
from sardonyx.ops.inference import axes_of, axis_of
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings, for_types

# Types by what kernels do: add, compare (ReduceMax of bool is a logical or).
_SUMMED: Final = FLOATS | {I32, I64, U32, U64}
_ORDERED: Final = _SUMMED | {I8, U8, BOOL}


def _reduction(node: Node, kernel: str) -> Call | No:
    x, axes = input_of(node, 0), optional_input(node, 1)
    numbers = () if axes is None else axes.tensor.ints
    if numbers is None:
        return No("the axes are known only at run time")
    reduced = axes_of(numbers, x.tensor.rank)
    # No axes are all axes, unless the node says that they are none.
    if not reduced and not node.attrs["noop_with_empty_axes"]:
        reduced = tuple(range(x.tensor.rank))
    return Call(kernel, (x,), (sum(1 << a for a in reduced),))  # a bit mask of axes


def _arg(node: Node, kernel: str) -> Call:
    x = input_of(node, 0)
    axis = axis_of(node.attrs["axis"], x.tensor.rank)
    return Call(kernel, (x,), (axis, node.attrs["select_last_index"]))


def _cumulative(node: Node, kernel: str) -> Call | No:
    x, axis = input_of(node, 0), input_of(node, 1).tensor.ints
    if axis is None or len(axis) != 1:
        return No("the axis is known only at run time" if axis is None else "several axes")
    ints = (axis_of(axis[0], x.tensor.rank), node.attrs["exclusive"], node.attrs["reverse"])
    return Call(kernel, (x,), ints)


LOWERINGS: Final[Lowerings] = {
    ("", "ReduceSum"): for_types(_SUMMED, _reduction, kernel="reduce_sum"),
    ("", "ReduceMean"): for_types(_SUMMED, _reduction, kernel="reduce_mean"),
    ("", "ReduceMax"): for_types(_ORDERED, _reduction, kernel="reduce_max"),
    ("", "ReduceMin"): for_types(_ORDERED, _reduction, kernel="reduce_min"),
    ("", "ReduceProd"): for_types(_SUMMED, _reduction, kernel="reduce_prod"),
    ("", "ReduceL1"): for_types(_SUMMED, _reduction, kernel="reduce_l1"),
    ("", "ReduceL2"): for_types(_SUMMED, _reduction, kernel="reduce_l2"),
    ("", "ReduceSumSquare"): for_types(_SUMMED, _reduction, kernel="reduce_sum_square"),
    ("", "ReduceLogSum"): for_types(FLOATS, _reduction, kernel="reduce_log_sum"),
    ("", "ReduceLogSumExp"): for_types(FLOATS, _reduction, kernel="reduce_log_sum_exp"),
    ("", "ArgMax"): for_types(NUMBERS, _arg, kernel="arg_max"),
    ("", "ArgMin"): for_types(NUMBERS, _arg, kernel="arg_min"),
    ("", "CumSum"): for_types(_SUMMED, _cumulative, kernel="running_sum"),
    ("", "CumProd"): for_types(_SUMMED, _cumulative, kernel="running_prod"),
}

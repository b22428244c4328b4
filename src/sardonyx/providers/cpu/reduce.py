"""Reductions, indices of extremes, and running sums and products on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Final

from sardonyx.graph.dtype import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from sardonyx.graph.graph import Node
from sardonyx.ops.inference import axes_of, axis_of
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering

_FLOATS: Final = frozenset((F32, F64, F16, BF16))
_SUMMED: Final = _FLOATS | {I32, I64, U32, U64}
_ORDERED: Final = _SUMMED | {I8, U8, BOOL}
_COMPARED: Final = _SUMMED | {I8, U8, I16, U16}


def _reduction(node: Node, row: str, types: frozenset[DType]) -> Call | No:
    x = node.inputs[0]
    assert x is not None
    if x.tensor.dtype not in types:
        return No(f"no kernel for {x.tensor.dtype}")
    given = node.inputs[1] if len(node.inputs) > 1 else None
    axes: tuple[int, ...] | None = ()
    if given is not None:
        axes = given.tensor.ints
        if axes is None:
            return No("the axes are known only when it runs")
    rank = x.tensor.rank
    if axes:
        chosen = axes_of(axes, rank)
    else:
        chosen = () if node.attrs["noop_with_empty_axes"] else tuple(range(rank))
    return Call(row, (x,), (sum(1 << a for a in chosen),))


def _index(node: Node, row: str) -> Call | No:
    x = node.inputs[0]
    assert x is not None
    if x.tensor.dtype not in _COMPARED:
        return No(f"no kernel for {x.tensor.dtype}")
    axis = axis_of(node.attrs["axis"], x.tensor.rank)
    return Call(row, (x,), (axis, node.attrs["select_last_index"]))


def _running(node: Node, row: str) -> Call | No:
    x, axis = node.inputs
    assert x is not None
    assert axis is not None
    if x.tensor.dtype not in _SUMMED:
        return No(f"no kernel for {x.tensor.dtype}")
    if axis.tensor.ints is None:
        return No("the axis is known only when it runs")
    if len(axis.tensor.ints) != 1:
        return No("the axis is not one number")
    along = axis_of(axis.tensor.ints[0], x.tensor.rank)
    return Call(row, (x,), (along, node.attrs["exclusive"], node.attrs["reverse"]))


_REDUCTIONS: Final = (
    ("ReduceSum", "reduce_sum", _SUMMED),
    ("ReduceMean", "reduce_mean", _SUMMED),
    ("ReduceMax", "reduce_max", _ORDERED),
    ("ReduceMin", "reduce_min", _ORDERED),
    ("ReduceProd", "reduce_prod", _SUMMED),
    ("ReduceL1", "reduce_l1", _SUMMED),
    ("ReduceL2", "reduce_l2", _SUMMED),
    ("ReduceSumSquare", "reduce_sum_square", _SUMMED),
    ("ReduceLogSum", "reduce_log_sum", _FLOATS),
    ("ReduceLogSumExp", "reduce_log_sum_exp", _FLOATS),
)

LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    **{("", op): partial(_reduction, row=row, types=types) for op, row, types in _REDUCTIONS},
    ("", "ArgMax"): partial(_index, row="arg_max"),
    ("", "ArgMin"): partial(_index, row="arg_min"),
    ("", "CumSum"): partial(_running, row="running_sum"),
    ("", "CumProd"): partial(_running, row="running_prod"),
}

"""Reductions, ops along an axis, and normalizations."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bench.sweep.case import OPSET, Array, Case
from bench.sweep.draw import FLOATS, MICROSOFT, Draw, Family, fixed, rows


def _reduce(d: Draw, op: str) -> Case:
    shape = d.shape()
    rank = len(shape)
    axes = d.pick(
        [
            [rank - 1],
            [rank - 1],
            [1],
            [0],
            list(range(rank)),
            list(range(2, rank)) or [1],
            [0, rank - 1],
        ]
    )
    types = (
        FLOATS
        if op in ("ReduceL2", "ReduceLogSumExp", "ReduceLogSum")
        else (*FLOATS, "int32", "int64")
    )
    positive = (0.5, 2.0) if op in ("ReduceLogSum", "ReduceProd") else (0.0, 0.0)
    operands = [d.array(shape, d.pick(types), *positive), np.array(sorted(set(axes)), np.int64)]
    return Case(op, operands, {"keepdims": d.pick((0, 1))}, frozenset({1}))


def _along(d: Draw, op: str, **attrs: Any) -> Case:
    """Ops with one operand and an axis: Softmax, ArgMax, Hardmax..."""
    shape = d.shape()
    axis = d.pick((-1, -1, -1, 1, 0))
    types = (
        ("float32", "float32", "float16", "float64") if "Arg" not in op else (*FLOATS[:4], "int32")
    )
    return Case(op, [d.array(shape, d.pick(types))], {"axis": axis, **attrs})


def _cumulative(d: Draw, op: str) -> Case:
    shape = d.shape()
    axis = np.array(d.pick((0, 1, len(shape) - 1)), np.int64)
    attrs = {"exclusive": d.pick((0, 0, 1)), "reverse": d.pick((0, 0, 1))}
    dtype = d.pick(("float32", "int64", "int32", "float64"))
    opset = 26 if op == "CumProd" else OPSET
    return Case(op, [d.array(shape, dtype), axis], attrs, frozenset({1}), opset=opset)


def _layer_norm(d: Draw, op: str, domain: str = "") -> Case:
    shape, dtype = d.tokens(), d.pick(("float32", "float32", "float16"))
    width = shape[-1:]
    operands: list[Array | None] = [d.array(shape, dtype), d.array(width, dtype)]
    if op == "LayerNormalization" and d.chance(0.8):
        operands.append(d.array(width, dtype))
    if op.startswith("Skip"):
        operands.insert(1, d.array(shape, dtype))
        if op == "SkipLayerNormalization":
            operands.append(d.array(width, dtype))
    attrs: dict[str, Any] = {"epsilon": 1e-5} if op.startswith("Skip") else {"axis": -1}
    first = 2 if op.startswith("Skip") else 1
    return Case(op, operands, attrs, frozenset(range(first, len(operands))), domain)


def _channel_norm(d: Draw, op: str) -> Case:
    shape, dtype = d.image(), d.pick(("float32", "float32", "float16"))
    c = shape[1]
    vectors = [
        d.array((c,), dtype, 0.5, 1.5) for _ in range(4 if op == "BatchNormalization" else 2)
    ]
    attrs: dict[str, Any] = {}
    if op == "GroupNormalization":
        attrs["num_groups"] = d.pick([g for g in (1, 2, 4, 8, 32, c) if c % g == 0])
    return Case(op, [d.array(shape, dtype), *vectors], attrs, frozenset(range(1, 1 + len(vectors))))


def _loss(d: Draw, op: str) -> Case:
    rows, classes = d.table()
    return Case(op, [d.array((rows, classes)), d.array((rows,), "int64", 0, classes)])


FAMILIES: Final[dict[str, Family]] = {
    **rows(
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
        "ReduceLogSumExp ReduceLogSum",
        _reduce,
    ),
    **rows("Softmax LogSoftmax Hardmax LpNormalization ArgMax ArgMin", _along),
    **rows("CumSum CumProd", _cumulative),
    **rows("LayerNormalization RMSNormalization SimplifiedLayerNormalization", _layer_norm),
    **rows(
        "SkipLayerNormalization SkipSimplifiedLayerNormalization",
        fixed(_layer_norm, domain=MICROSOFT),
    ),
    **rows("BatchNormalization InstanceNormalization GroupNormalization", _channel_norm),
    **rows("SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss", _loss),
}

"""Elementwise ops with one, two and more operands, over broadcasts and types."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bench.sweep.case import OPSET, Case
from bench.sweep.draw import FLOATS, INTS, MICROSOFT, Draw, Family, fixed, rows


def _unary(
    d: Draw,
    op: str,
    *,
    low: float = 0,
    high: float = 0,
    types: Any = FLOATS,
    domain: str = "",
) -> Case:
    opset = 24 if op == "Swish" else OPSET
    return Case(op, [d.array(d.shape(), d.pick(types), low, high)], domain=domain, opset=opset)


def _binary(
    d: Draw,
    op: str,
    *,
    types: Any = (*FLOATS, "int64", "int32"),
    low: float = 0,
    high: float = 0,
    domain: str = "",
) -> Case:
    shape, dtype = d.shape(), d.pick(types)
    operands = [d.array(shape, dtype, low, high), d.array(d.broadcast(shape), dtype, low, high)]
    if d.chance(0.3):
        operands.reverse()
    constants = frozenset({1}) if d.chance(0.4) else frozenset()
    return Case(op, operands, {}, constants, domain)


def _prelu(d: Draw, op: str) -> Case:
    shape = d.image()
    slopes = d.array((shape[1], 1, 1))
    return Case(op, [d.array(shape), slopes], {}, frozenset({1}))


def _variadic(d: Draw, op: str) -> Case:
    shape, dtype = d.shape(), d.pick(FLOATS)
    return Case(op, [d.array(shape, dtype) for _ in range(d.pick((2, 2, 3, 4)))])


def _where(d: Draw, op: str) -> Case:
    shape, dtype = d.shape(), d.pick((*FLOATS, "int64"))
    return Case(
        op,
        [
            d.array(d.broadcast(shape), "bool"),
            d.array(shape, dtype),
            d.array(d.broadcast(shape), dtype),
        ],
    )


def _clip(d: Draw, op: str) -> Case:
    dtype = d.pick((*FLOATS, "int8", "int32"))
    limits = [np.array(n, dtype) for n in (0, 6)]
    return Case(op, [d.array(d.shape(), dtype), *limits], constants=frozenset({1, 2}))


def _cast(d: Draw, op: str) -> Case:
    from onnx import TensorProto

    dtype = d.pick((*FLOATS, *INTS, "bool"))
    to = d.pick((1, 1, 10, 11, 7, 6, 2, 3, 9, TensorProto.BFLOAT16))
    return Case(op, [d.array(d.shape(), dtype)], {"to": int(to)})


def _bias_gelu(d: Draw, op: str) -> Case:
    shape = d.tokens()
    return Case(op, [d.array(shape), d.array(shape[-1:])], {}, frozenset({1}), MICROSOFT)


def _shift(d: Draw, op: str) -> Case:
    shape, dtype = d.shape(), d.pick(("uint8", "uint32"))
    operands = [d.array(shape, dtype, 0, 200), d.array(d.broadcast(shape), dtype, 0, 7)]
    return Case(op, operands, {"direction": d.pick(("LEFT", "RIGHT"))})


def _dropout(d: Draw, op: str) -> Case:
    return Case(op, [d.array(d.shape(), d.pick(FLOATS))], opset=d.pick((10, 13, 23)))


FAMILIES: Final[dict[str, Family]] = {
    **rows(
        "Relu Sigmoid Tanh Exp Neg Abs Erf Floor Ceil Round Sin Cos Softplus Softsign Elu Selu "
        "Gelu HardSigmoid HardSwish Mish LeakyRelu Celu Sign Reciprocal ThresholdedRelu Atan Sinh "
        "Cosh Tan Asinh IsNaN IsInf Identity Shrink",
        _unary,
    ),
    **rows("Sqrt Log", fixed(_unary, low=0.1, high=4)),
    **rows("Asin Acos Atanh", fixed(_unary, low=-0.9, high=0.9)),
    "Acosh": fixed(_unary, low=1, high=9),
    "Swish": _unary,
    "Not": fixed(_unary, types=("bool",)),
    "BitwiseNot": fixed(_unary, types=INTS),
    **rows("QuickGelu FastGelu", fixed(_unary, types=("float32", "float16"), domain=MICROSOFT)),
    **rows("Add Sub Mul", _binary),
    **rows("Div Pow", fixed(_binary, low=1, high=4)),
    **rows(
        "Mod BitwiseAnd BitwiseOr BitwiseXor",
        fixed(_binary, types=("int64", "int32"), low=1, high=9),
    ),
    **rows(
        "Less Greater Equal LessOrEqual GreaterOrEqual",
        fixed(_binary, types=("float32", "int64", "float64")),
    ),
    **rows("And Or Xor", fixed(_binary, types=("bool",))),
    **rows("Max Min Sum Mean", _variadic),
    "PRelu": _prelu,
    "Where": _where,
    "Clip": _clip,
    "Cast": _cast,
    "BiasGelu": _bias_gelu,
    "BitShift": _shift,
    "Dropout": _dropout,
}

"""Ops of integers with a scale and a zero point."""

from __future__ import annotations

from typing import Final

import numpy as np

from bench.sweep.case import Array, Case
from bench.sweep.draw import MICROSOFT, Draw, Family, rows
from bench.sweep.families.images import conv
from bench.sweep.families.products import product_sizes


def _integer_product(d: Draw, op: str) -> Case:
    m, k, n = product_sizes(d)
    a, b = d.pick((("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")))
    zeros = [np.array(d.pick((0, 3)), a), np.array(d.pick((0, 2)), b)]
    operands = [d.array((m, k), a), d.array((k, n), b), *zeros]
    return Case(op, operands, {}, frozenset({1, 2, 3}))


def _quantize(d: Draw, op: str) -> Case:
    shape = d.shape()
    kind = d.pick(("uint8", "int8", "uint8", "int8", "int16", "uint16"))
    is_per_channel = d.chance(0.4)
    scales = d.array((shape[1],), "float32", 0.01, 0.1) if is_per_channel else np.float32(0.05)
    zeros = np.full(np.shape(scales), 3, kind)
    x = d.array(shape) if op == "QuantizeLinear" else d.array(shape, kind)
    return Case(op, [x, np.asarray(scales), zeros], {"axis": 1}, frozenset({1, 2}))


def _qlinear_add(d: Draw, op: str) -> Case:
    shape, kind = d.shape(), d.pick(("uint8", "int8"))
    zero = np.array(3, kind)
    parts: list[Array] = []
    for dims in (shape, d.broadcast(shape)):
        parts += [d.array(dims, kind), np.array(0.05, np.float32), zero]
    parts += [np.array(0.07, np.float32), zero]
    return Case(op, parts, {}, frozenset({1, 2, 4, 5, 6, 7}), MICROSOFT)


def _qlinear_conv(d: Draw, op: str) -> Case:
    made = conv(d, "Conv")
    x, w = (a for a in made.operands[:2] if a is not None)
    a, b = d.pick((("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")))
    scale = np.array(0.02, np.float32)
    zero_w = np.array(d.pick((0, 0, 2)), b)
    operands = [
        d.array(x.shape, a),
        scale,
        np.array(3, a),
        d.array(w.shape, b),
        scale,
        zero_w,
        np.array(0.9, np.float32),
        np.array(5, a),
    ]
    return Case(op, operands, made.attrs, frozenset(range(1, 8)))


def _qlinear_unary(d: Draw, op: str) -> Case:
    kind = d.pick(("uint8", "int8"))
    parts = [
        np.array(0.05, np.float32),
        np.array(3, kind),
        np.array(1 / 256, np.float32),
        np.array(0, kind),
    ]
    return Case(op, [d.array(d.shape(), kind), *parts], {}, frozenset({1, 2, 3, 4}), MICROSOFT)


def _dynamic(d: Draw, op: str) -> Case:
    return Case(op, [d.array(d.shape())], n_outputs=3)


FAMILIES: Final[dict[str, Family]] = {
    "MatMulInteger": _integer_product,
    **rows("QuantizeLinear DequantizeLinear", _quantize),
    "DynamicQuantizeLinear": _dynamic,
    "QLinearConv": _qlinear_conv,
    **rows("QLinearAdd QLinearMul", _qlinear_add),
    **rows("QLinearSigmoid QLinearLeakyRelu", _qlinear_unary),
}

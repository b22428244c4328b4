"""Ops of integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from bench.sweep.case import Array, Case
from bench.sweep.draw import MICROSOFT, Draw, Family, rows
from bench.sweep.families.images import conv
from bench.sweep.families.products import product_sizes

Parts = list[Array]


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


def _coded(d: Draw, shape: Sequence[int], kind: str, scale: float = 0.05, zero: int = 3) -> Parts:
    """A quantized tensor, its scale and its zero point."""
    return [d.array(shape, kind), np.array(scale, np.float32), np.array(zero, kind)]


def _after(operands: Sequence[Array], first: int) -> frozenset[int]:
    return frozenset(range(first, len(operands)))


def _qlinear_product(d: Draw, op: str) -> Case:
    """QLinearMatMul and QGemm."""
    m, k, n = product_sizes(d)
    a, b = d.pick((("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")))
    operands = [*_coded(d, (m, k), a), *_coded(d, (k, n), b, 0.02, d.pick((0, 2)))]
    if op == "QGemm":
        operands.append(d.array((n,), "int32"))
    operands += [np.array(k * 0.002, np.float32), np.array(5, a)]
    domain = MICROSOFT if op == "QGemm" else ""
    return Case(op, operands, {}, _after(operands, 1), domain)


def _float_product(d: Draw, op: str) -> Case:
    """Products of 8-bit weights with float results."""
    m, k, n = product_sizes(d)
    kind = d.pick(("uint8", "int8"))
    weights, scale, zero = _coded(d, (k, n), kind, 0.02, d.pick((0, 2)))
    if op == "DynamicQuantizeMatMul":
        return Case(
            op, [d.array((m, k)), weights, scale, zero], {}, frozenset({1, 2, 3}), MICROSOFT
        )
    x, x_scale, x_zero = _coded(d, (m, k), "uint8")
    operands = [x, weights, x_scale, scale, x_zero, zero]
    return Case(op, operands, {}, _after(operands, 1), MICROSOFT)


def _conv_integer(d: Draw, op: str) -> Case:
    made = _qlinear_conv(d, "QLinearConv")
    x, _, zero_x, w, _, zero_w = made.operands[:6]
    operands = [x, w, zero_x, zero_w if w is not None and w.dtype == np.uint8 else None]
    return Case(op, operands, made.attrs, frozenset({1, 2, 3}))


def _qlinear_pool(d: Draw, op: str) -> Case:
    shape, kind = d.image(), d.pick(("uint8", "int8"))
    operands = [*_coded(d, shape, kind), np.array(0.04, np.float32), np.array(2, kind)]
    attrs: dict[str, Any] = {"channels_last": 0}
    if op == "QLinearAveragePool":
        attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    return Case(op, operands, attrs, _after(operands, 1), MICROSOFT)


def _qlinear_concat(d: Draw, op: str) -> Case:
    shape, kind = d.image(), d.pick(("uint8", "int8"))
    scales = d.pick(((0.05, 0.05), (0.05, 0.02)))
    operands = [np.array(0.05, np.float32), np.array(3, kind)]
    for scale in scales:
        operands += _coded(d, shape, kind, scale)
    constants = frozenset({0, 1, 3, 4, 6, 7})
    return Case(op, operands, {"axis": 1}, constants, MICROSOFT)


def _qlinear_softmax(d: Draw, op: str) -> Case:
    kind = d.pick(("uint8", "int8"))
    shape = d.pick((d.table, d.tokens))()
    operands = [*_coded(d, shape, kind), np.array(1 / 256, np.float32), np.array(0, kind)]
    attrs = {"axis": -1, "opset": 13}
    return Case(op, operands, attrs, _after(operands, 1), MICROSOFT)


def _qlinear_where(d: Draw, op: str) -> Case:
    shape, kind = d.shape(), d.pick(("uint8", "int8"))
    parts = [*_coded(d, shape, kind), *_coded(d, d.broadcast(shape), kind, 0.02)]
    operands = [d.array(shape, "bool"), *parts, np.array(0.05, np.float32), np.array(3, kind)]
    return Case(op, operands, {}, frozenset({2, 3, 5, 6, 7, 8}), MICROSOFT)


def _quantized_attention(d: Draw, op: str) -> Case:
    batch, tokens, heads, size = d.pick([(1, 128, 12, 64), (8, 64, 6, 64), (1, 7, 2, 16)])
    width = heads * size
    operands = [
        d.array((batch, tokens, width), "uint8"),
        d.array((width, 3 * width), "int8"),
        d.array((3 * width,)),
        np.array(0.02, np.float32),
        np.array(0.002, np.float32),
        None,
        np.array(120, np.uint8),
        np.array(0, np.int8),
    ]
    constants = frozenset({1, 2, 3, 4, 6, 7})
    return Case(op, operands, {"num_heads": heads}, constants, MICROSOFT)


def _gather_blocks(d: Draw, op: str) -> Case:
    """An embedding table of 4 bits."""
    count, width = d.pick([(64, 128), (1000, 768), (32000, 2048)])
    codes = d.array((count, width // 2), "uint8", 0, 255)
    scales = d.array((count, width // 32), "float32", 0.01, 0.02)
    index = d.array((1, d.pick((1, 64, 512))), "int64", 0, count)
    attrs = {"block_size": 32, "bits": 4, "gather_axis": 0, "quantize_axis": 1}
    return Case(op, [codes, index, scales], attrs, frozenset({0, 2}), MICROSOFT)


FAMILIES: Final[dict[str, Family]] = {
    "MatMulInteger": _integer_product,
    **rows("QuantizeLinear DequantizeLinear", _quantize),
    "DynamicQuantizeLinear": _dynamic,
    "QLinearConv": _qlinear_conv,
    **rows("QLinearAdd QLinearMul", _qlinear_add),
    **rows("QLinearSigmoid QLinearLeakyRelu", _qlinear_unary),
    **rows("QLinearMatMul QGemm", _qlinear_product),
    **rows("DynamicQuantizeMatMul MatMulIntegerToFloat", _float_product),
    "ConvInteger": _conv_integer,
    **rows("QLinearAveragePool QLinearGlobalAveragePool", _qlinear_pool),
    "QLinearConcat": _qlinear_concat,
    "QLinearSoftmax": _qlinear_softmax,
    "QLinearWhere": _qlinear_where,
    "QAttention": _quantized_attention,
    "GatherBlockQuantized": _gather_blocks,
}

"""Quantizers, products of quantized numbers, and quantized lookup tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.ops import images
from tests.random_graphs.ops.draw import Generator, image, types
from tests.random_graphs.ops.linear import WIDTHS
from tests.random_graphs.value import DTYPES, Value, is_float


def scale_of(b: Builder, dtype: str, shape: tuple[int, ...]) -> Value:
    data = b.numbers.uniform(0.01, 0.1, shape)
    return b.given(np.asarray(data).astype(DTYPES[dtype]), b.rng.choice(("initializer", "input")))


def zero_of(b: Builder, kind: str, shape: tuple[int, ...]) -> Value:
    if is_float(kind) or kind in ("int32", "int16", "uint16"):
        return b.given(np.zeros(shape).astype(DTYPES[kind]), "initializer")
    top = {"int4": 3, "uint4": 9, "int8": 20, "uint8": 140}[kind]
    low = -top if kind.startswith("i") else 0
    return b.new(kind, shape, low, top, "initializer")


def _layout(b: Builder, x: Value) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Attributes, and the shape of scales: one, one for each of an axis, or blocks of it."""
    if b.rng.random() < 0.5 or b.traits.opset < 13 or not x.rank:
        return {}, b.rng.choice(((), ()))
    at = b.rng.randrange(-x.rank, x.rank)
    size = x.shape[at]
    if b.traits.opset >= 21 and b.rng.random() < 0.3 and size:
        block = b.rng.choice([d for d in (1, 2, 3, 4, 8) if d <= size])
        shape = list(x.shape)
        shape[at] = -(-size // block)
        return {"axis": at, "block_size": block}, tuple(shape)
    return {"axis": at}, (size,)


def quantize(b: Builder, op: str) -> None:
    letters = ("T1", "T3" if b.traits.opset >= 23 else "T2")
    x = b.pick([t for t in types(b, op, letters[0]) if is_float(t)], lambda v: v.data.size > 0)
    kind = b.rng.choice(types(b, op, letters[1]))
    attrs, shape = _layout(b, x)
    scale = scale_of(b, x.dtype if b.traits.opset >= 19 else "float", shape)
    inputs = [x, scale]
    if b.rng.random() < 0.8 or kind != "uint8":
        inputs.append(zero_of(b, kind, shape))
    if is_float(kind) and b.rng.random() < 0.3:
        attrs["saturate"] = 0
    b.emit(op, inputs, **attrs)


def dequantize(b: Builder, op: str) -> None:
    letter = "T1" if b.traits.opset >= 19 else "T"
    kinds = types(b, op, letter)
    x = b.pick(kinds, lambda v: v.data.size > 0, p_new=0.5)
    attrs, shape = _layout(b, x)
    out = b.rng.choice(types(b, op, "T2")) if b.traits.opset >= 19 else "float"
    inputs = [x, scale_of(b, out, shape)]
    if b.rng.random() < 0.7:
        inputs.append(zero_of(b, x.dtype, shape))
    b.emit(op, inputs, **attrs)


def dynamic(b: Builder, op: str) -> None:
    b.emit(op, [b.pick(["float"], lambda v: v.data.size > 0)], 3)


def qlinear_matmul(b: Builder, op: str) -> None:
    x = b.pick(
        ["uint8", "int8"], lambda v: v.rank >= 2 and 0 not in v.shape, lambda: b.new_shape(2)
    )
    n = b.rng.choice(WIDTHS)
    w = b.new(
        x.dtype if x.dtype == "int8" else b.rng.choice(("uint8", "int8")),
        (x.shape[-1], n),
        style=b.rng.choice(("initializer", "input")),
    )
    each = (n,) if b.rng.random() < 0.4 else ()
    y_kind = x.dtype
    b.emit(op, [
        x, scale_of(b, "float", ()), zero_of(b, x.dtype, ()), w, scale_of(b, "float", each),
        zero_of(b, w.dtype, each), scale_of(b, "float", ()), zero_of(b, y_kind, ()),
    ])  # fmt: skip


def qlinear_conv(b: Builder, op: str) -> None:
    x = image(b, ["uint8", "int8"], (2,))
    attrs = images.windows(b, x)
    filters = b.rng.choice((1, 3, 8, 16))
    kind = "int8" if x.dtype == "int8" else b.rng.choice(("uint8", "int8"))
    w = b.new(kind, (filters, x.shape[1], *attrs["kernel_shape"]), style="initializer")
    each = (filters,) if b.rng.random() < 0.4 else ()
    zero = b.given(
        np.full(each, 0 if each else b.rng.choice((0, 3))).astype(DTYPES[kind]), "initializer"
    )
    inputs = [
        x, scale_of(b, "float", ()), zero_of(b, x.dtype, ()), w, scale_of(b, "float", each), zero,
        scale_of(b, "float", ()), zero_of(b, x.dtype, ()),
    ]  # fmt: skip
    if b.rng.random() < 0.5:
        inputs.append(b.new("int32", (filters,), -200, 200, "initializer"))
    b.emit(op, inputs, **attrs)


def conv_integer(b: Builder, op: str) -> None:
    x = image(b, types(b, op, "T1"), (2,))
    attrs = images.windows(b, x)
    kind = b.rng.choice(types(b, op, "T2"))
    w = b.new(
        kind, (b.rng.choice((1, 4, 16)), x.shape[1], *attrs["kernel_shape"]), style="initializer"
    )
    inputs = [x, w]
    if b.rng.random() < 0.6:
        inputs.append(zero_of(b, x.dtype, ()))
        if b.rng.random() < 0.5:
            inputs.append(zero_of(b, kind, ()))
    b.emit(op, inputs, **attrs)


def nbits_matmul(b: Builder, op: str) -> None:
    """MatMulNBits with weights of 4 or 8 bits."""
    x = b.pick(["float"], lambda v: 1 < v.rank < 4 and 0 not in v.shape, lambda: b.new_shape(2))
    k, n = x.shape[-1], b.rng.choice(WIDTHS)
    bits, block = b.rng.choice((4, 4, 8)), b.rng.choice((16, 32))
    blocks = -(-k // block)
    packed = b.numbers.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    scales = b.numbers.uniform(0.01, 0.1, (n, blocks)).astype(np.float32)
    inputs = [x, b.given(packed, "initializer"), b.given(scales, "initializer")]
    if b.rng.random() < 0.5:
        width = -(-blocks * bits // 8)
        points = b.numbers.integers(0, 256, (n, width)).astype(np.uint8)
        inputs.append(b.given(points, "initializer"))
    b.emit(op, inputs, domain="com.microsoft", K=k, N=n, bits=bits, block_size=block)


def block_weights(b: Builder, op: str) -> None:
    """A matmul with a blockwise DequantizeLinear of 4-bit constants."""
    if b.traits.opset < 21:
        raise Unfit("no blocks then")
    x = b.pick(["float"], lambda v: 1 < v.rank < 4 and 0 not in v.shape, lambda: b.new_shape(2))
    k, n = x.shape[-1], b.rng.choice(WIDTHS)
    block = b.rng.choice((16, 32))
    kind = b.rng.choice(("int4", "uint4", "int8", "uint8"))
    is_transposed = b.rng.random() < 0.5
    shape, at = ((n, k), 1) if is_transposed else ((k, n), 0)
    w = b.new(kind, shape, style="initializer")
    blocks = list(shape)
    blocks[at] = -(-k // block)
    inputs = [w, scale_of(b, "float", tuple(blocks))]
    if b.rng.random() < 0.5:
        inputs.append(zero_of(b, kind, tuple(blocks)))
    y = b.emit("DequantizeLinear", inputs, axis=at, block_size=block)[0]
    if is_transposed:
        y = b.emit("Transpose", [y], perm=[1, 0])[0]
    b.emit("MatMul", [x, y])


OPS: dict[str, Generator] = {
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize, "DynamicQuantizeLinear": dynamic,
    "QLinearMatMul": qlinear_matmul, "QLinearConv": qlinear_conv, "ConvInteger": conv_integer,
    "MatMulNBits": nbits_matmul, "BlockWeights": block_weights,
}  # fmt: skip

"""Quantized models: what lies between dequantizing and quantizing works on the steps themselves."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import F32, I8, I32, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT
from sardonyx.ops.builder import Builder
from sardonyx.passes.pattern import Call, P, hole, scalar
from sardonyx.passes.rule import need, ranked, rule

_BYTES: Final = (U8, I8)
_CONV_ATTRS: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

x, w, a, c, y = hole("x"), hole("w"), hole("a"), hole("c"), hole("y")


@frozen
class Steps:
    """A tensor of bytes, with what they stand for."""

    value: Value
    scale: Value
    zero: Value | None


def _optional(node: Node, slot: int) -> Value | None:
    return node.inputs[slot] if len(node.inputs) > slot else None


def _steps_of(node: Node) -> Steps:
    """What a DequantizeLinear or QuantizeLinear reads."""
    value, scale = node.inputs[:2]
    assert value is not None
    assert scale is not None
    ranked(value, scale)
    need(scale.tensor.dtype is F32, "the scale is not float32")
    need(not node.attrs["block_size"], "scales are for blocks")
    return Steps(value, scale, _optional(node, 2))


def _single(steps: Steps) -> Steps:
    need(all(d == 1 for d in steps.scale.tensor.dims), "there is more than one scale")
    return steps


def _dequantized(value: Value | None) -> Steps:
    """The bytes that a value is made of."""
    node = None if value is None else value.node
    need(node is not None and node.op.key == ("", "DequantizeLinear"), "not dequantized")
    assert node is not None
    steps = _steps_of(node)
    need(steps.value.tensor.dtype in _BYTES, "not of bytes")
    need(node.outputs[0].tensor.dtype is F32, "not dequantized to float32")
    return steps


def _image(value: Value | None) -> Steps:
    return _single(_dequantized(value))


def _weights(value: Value, axis: int) -> Steps:
    """Constant weights, with one scale or one for each place of an axis."""
    steps = _dequantized(value)
    node = value.node
    assert node is not None
    need(steps.value.is_const, "the weights are not constant")
    if any(d != 1 for d in steps.scale.tensor.dims):
        rank = steps.value.tensor.rank
        need(node.attrs["axis"] % rank == axis % rank, "scales go along another axis")
    return steps


def _result(q: Node) -> Steps:
    """What a QuantizeLinear makes; its first part is not used."""
    steps = _single(_steps_of(q))
    need(q.outputs[0].tensor.dtype in _BYTES, "not quantized to bytes")
    need(q.attrs["precision"] in (0, F32.onnx), "divided in another precision")
    return steps


def _bias(b: Builder, value: Value | None, columns: object) -> Value | None:
    """A bias as a row of float32, from a constant or from one that is dequantized."""
    if value is None:
        return None
    node = value.node
    if value.const is not None:
        array = value.const.read()
    else:
        need(
            node is not None and node.op.key == ("", "DequantizeLinear"), "a bias that is computed"
        )
        assert node is not None
        consts = [None if v is None else v.const for v in node.inputs]
        need(all(k is not None for k in consts), "a bias that is computed")
        array = node.op.run([k.read() for k in consts if k is not None], node.attrs)[0]
    need(isinstance(columns, int) and array.size in (1, columns), "the bias is no row")
    assert isinstance(columns, int)
    return b.const(np.broadcast_to(array.reshape(-1), (columns,)).astype(np.float32), F32)


def _bounds(act: Node | None) -> tuple[float, float]:
    """What an activation holds numbers within."""
    if act is None:
        return -math.inf, math.inf
    if act.op.name == "FusedConv":
        name, params = act.attrs["activation"], list(act.attrs["activation_params"] or [])
        need(
            name == b"Relu" or (name == b"Clip" and len(params) == 2), "the activation is no bound"
        )
        return (0.0, math.inf) if name == b"Relu" else (float(params[0]), float(params[1]))
    if act.op.name == "Relu":
        return 0.0, math.inf
    bounds = [-math.inf, math.inf]
    for i in (0, 1):
        given = _optional(act, i + 1)
        number = scalar(given)
        need(given is None or number is not None, "bounds are not constant")
        bounds[i] = bounds[i] if number is None else number
    return bounds[0], bounds[1]


def _held(inner: Call) -> tuple[Call, ...]:
    """A pattern with no activation behind it, or one that only holds numbers within bounds."""
    return inner, P.Relu(inner).named("act"), P.Clip(inner, rest=True).named("act")


def _quantized(*inner: Call) -> tuple[Call, ...]:
    return tuple(P.QuantizeLinear(i, rest=True).named("q") for i in inner)


_CONVS: Final = (
    P.Conv(x, w, rest=True).named("conv"),
    P.FusedConv(x, w, rest=True, domain=MICROSOFT).named("conv"),
)


def _conv(b: Builder, conv: Node, act: Node | None, q: Node | None) -> Value:
    """A convolution of bytes, into bytes or into float32."""
    need(_optional(conv, 3) is None, "something is added")
    image, weights = _image(conv.inputs[0]), _weights(_given(conv, 1), 0)
    bias = _bias(b, _optional(conv, 2), weights.value.tensor.dims[0])
    low, high = _bounds(conv if conv.op.name == "FusedConv" else act)
    attrs = {k: conv.attrs[k] for k in _CONV_ATTRS}
    return _product(b, "QConv", (image, weights, bias), q, low=low, high=high, **attrs)


def _given(node: Node, slot: int) -> Value:
    value = node.inputs[slot]
    assert value is not None
    return value


def _product(
    b: Builder, op: str, operands: tuple[Steps, Steps, Value | None], q: Node | None, **attrs: Any
) -> Value:
    left, right, bias = operands
    result = None if q is None else _result(q)
    made: Value = b.node(
        op,
        left.value, right.value, left.scale, left.zero, right.scale, right.zero, bias,
        None if result is None else result.scale,
        None if result is None else result.zero,
        domain=INTERNAL,
        dtype=F32.onnx if q is None else q.outputs[0].tensor.dtype.onnx,
        **attrs,
    ).outputs[0]  # fmt: skip
    return made


@rule(*_quantized(*_held(_CONVS[0]), _CONVS[1]))
def conv_steps(
    b: Builder, x: Value, w: Value, conv: Node, q: Node, act: Node | None = None
) -> Value:
    """A convolution between steps."""
    return _conv(b, conv, act, q)


@rule(*_CONVS)
def conv_float(b: Builder, x: Value, w: Value, conv: Node) -> Value:
    """A convolution of steps whose result is wanted as it is."""
    return _conv(b, conv, None, None)


def _gemm(b: Builder, gemm: Node, act: Node | None, q: Node | None) -> Value:
    """A product of bytes, into bytes or into float32."""
    is_gemm = gemm.op.name == "Gemm"
    trans = bool(is_gemm and gemm.attrs["transB"])
    if is_gemm:
        plain = gemm.attrs["alpha"] == 1 and gemm.attrs["beta"] == 1 and not gemm.attrs["transA"]
        need(plain, "factors, or rows turned")
    weights = _weights(_given(gemm, 1), 0 if trans else 1)
    need(weights.value.tensor.rank == 2, "the weights are no matrix")
    columns = weights.value.tensor.dims[0 if trans else 1]
    bias = _bias(b, _optional(gemm, 2), columns) if is_gemm else None
    low, high = _bounds(act)
    operands = _image(gemm.inputs[0]), weights, bias
    return _product(b, "QMatMul", operands, q, low=low, high=high, trans_w=int(trans))


_PRODUCTS: Final = (
    P.Gemm(x, w, rest=True).named("gemm"),
    P.MatMul(x, w).named("gemm"),
)


@rule(*_quantized(*(p for inner in _PRODUCTS for p in _held(inner))))
def matmul_steps(
    b: Builder, x: Value, w: Value, gemm: Node, q: Node, act: Node | None = None
) -> Value:
    """A product between steps."""
    return _gemm(b, gemm, act, q)


@rule(*_PRODUCTS)
def matmul_float(b: Builder, x: Value, w: Value, gemm: Node) -> Value:
    """A product of steps whose result is wanted as it is."""
    return _gemm(b, gemm, None, None)


@rule(*_quantized(*_held(P.Add(a, c))))
def add_steps(b: Builder, a: Value, c: Value, q: Node, act: Node | None = None) -> Value:
    """A sum between steps."""
    left, right, result = _image(a), _image(c), _result(q)
    need(left.value.tensor.shape == right.value.tensor.shape, "operands are broadcast")
    low, high = _bounds(act)
    made: Value = b.QAdd(
        left.value, left.scale, left.zero, right.value, right.scale, right.zero,
        result.scale, result.zero, domain=INTERNAL,
        dtype=q.outputs[0].tensor.dtype.onnx, low=low, high=high,
    )  # fmt: skip
    return made


@rule(
    *_quantized(
        P.ReduceMean(x, rest=True).named("mean"),
        P.GlobalAveragePool(x).named("mean"),
    )
)
def mean_steps(b: Builder, x: Value, mean: Node, q: Node) -> Value:
    """A mean over all pixels of images, between steps."""
    image, result = _image(x), _result(q)
    rank = image.value.tensor.rank
    need(rank > 2, "no images")
    if mean.op.name == "ReduceMean":
        axes = None if (given := _optional(mean, 1)) is None else given.tensor.ints
        need(axes is not None and sorted(i % rank for i in axes) == [*range(2, rank)], "not pixels")
        need(mean.attrs["keepdims"], "takes dims out")
    made: Value = b.QMean(
        image.value, image.scale, image.zero, result.scale, result.zero,
        domain=INTERNAL, dtype=q.outputs[0].tensor.dtype.onnx,
    )  # fmt: skip
    return made


def _same(value: Value | None, other: Value | None) -> bool:
    """Whether two scales or zero points are one value, or constants with the same number."""
    if value is None or other is None or value is other:
        return value is other
    one, two = scalar(value), scalar(other)
    return one is not None and one == two and value.tensor.dtype is other.tensor.dtype


def _means_the_same(before: Steps, after: Steps) -> None:
    is_same = _same(before.scale, after.scale) and _same(before.zero, after.zero)
    need(is_same, "steps mean something else")


@rule(*_quantized(P.DequantizeLinear(x, rest=True).named("inner")))
def steps_again(b: Builder, x: Value, inner: Node, q: Node) -> Value:
    """Steps of one kind, dequantized and quantized again, are what they were."""
    before, after = _single(_steps_of(inner)), _result(q)
    need(before.value.tensor.dtype is q.outputs[0].tensor.dtype, "types differ")
    _means_the_same(before, after)
    return x


_MOVES: Final = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze")


@rule(*_quantized(*(getattr(P, op)(y, rest=True).named("move") for op in _MOVES)))
def quantize_before(b: Builder, y: Value, move: Node, q: Node) -> Value:
    """Fewer bytes are moved behind quantizing."""
    _result(q)
    ranked(y)
    early = b.node("QuantizeLinear", y, *q.inputs[1:], **q.attrs).outputs[0]
    rest = move.inputs[1:]
    made: Value = b.node(move.op.name, early, *rest, **move.attrs).outputs[0]
    return made


@rule(*_quantized(P.MaxPool(x).named("pool")))
def max_steps(b: Builder, x: Value, pool: Node, q: Node) -> Value:
    """The largest of steps of one kind."""
    image = _image(x)
    need(len(pool.outputs) == 1, "places are wanted")
    need(image.value.tensor.dtype is q.outputs[0].tensor.dtype, "types differ")
    _means_the_same(image, _result(q))
    made: Value = b.node("MaxPool", image.value, **pool.attrs).outputs[0]
    return made


@rule(*_quantized(P.Concat(x, rest=True).named("concat")))
def concat_steps(b: Builder, x: Value, concat: Node, q: Node) -> Value:
    """Parts of one kind of steps, joined."""
    parts, result = [_image(v) for v in concat.inputs], _result(q)
    for part in parts:
        need(part.value.tensor.dtype is q.outputs[0].tensor.dtype, "types differ")
        _means_the_same(part, result)
    made: Value = b.Concat(*(p.value for p in parts), **concat.attrs)
    return made


@rule(*_quantized(P.Where(c, x, y)))
def where_steps(b: Builder, c: Value, x: Value, y: Value, q: Node) -> Value:
    """Steps of one kind, chosen."""
    sides, result = [_image(v) for v in (x, y)], _result(q)
    for side in sides:
        need(side.value.tensor.dtype is q.outputs[0].tensor.dtype, "types differ")
        _means_the_same(side, result)
    made: Value = b.Where(c, *(side.value for side in sides))
    return made


@rule(P.Mul(P.Cast(P.MatMulInteger(x, w, rest=True).named("sums")).named("cast"), y))
def integer_product(b: Builder, x: Value, w: Value, y: Value, sums: Node, cast: Node) -> Value:
    """Exact sums, converted and scaled, as dynamic quantization writes them."""
    ranked(x, w, y)
    need(cast.outputs[0].tensor.dtype is F32, "not converted to float32")
    need(y.tensor.rank <= 1, "scales are no row")
    x_scale, w_scale = _factors(y)
    columns = w.tensor.dims[-1]
    is_row = all(d == 1 for d in w_scale.tensor.dims) or w_scale.tensor.dims == (columns,)
    need(is_row, "scales are no row")
    made: Value = b.QMatMul(
        x, w, x_scale, _optional(sums, 2), w_scale, _optional(sums, 3), None, None, None,
        domain=INTERNAL, dtype=F32.onnx,
    )  # fmt: skip
    return made


_SUMS: Final = P.ConvInteger(x, rest=True).named("sums")


@rule(P.Mul(P.Cast(_SUMS).named("cast"), y), P.Mul(P.Cast(P.Add(_SUMS, c)).named("cast"), y))
def integer_conv(
    b: Builder, x: Value, y: Value, sums: Node, cast: Node, c: Value | None = None
) -> Value:
    """Exact sums of windows, perhaps with whole numbers added, converted and scaled."""
    w = _given(sums, 1)
    ranked(x, w, y)
    need(cast.outputs[0].tensor.dtype is F32, "not converted to float32")
    need(all(d == 1 for d in y.tensor.dims), "there is more than one scale")
    maps, rank = w.tensor.dims[0], w.tensor.rank
    need(y.tensor.rank <= rank, "more dims")
    bias = None if c is None else _maps(b, c, maps, rank)
    made: Value = b.QConv(
        x, w, y, _optional(sums, 2), None, _optional(sums, 3), bias, None, None,
        domain=INTERNAL, dtype=F32.onnx, **sums.attrs,
    )  # fmt: skip
    return made


def _maps(b: Builder, value: Value, maps: object, rank: int) -> Value:
    """Numbers for each feature map of images as a row."""
    ranked(value)
    lone = (maps, *(1,) * (rank - 2))
    need(maps != 1 and value.tensor.dims in (lone, (1, *lone)), "no number for each map")
    node = value.node
    before = node.inputs[0] if node is not None and node.op.key == ("", "Reshape") else None
    if before is not None and isinstance(before.fact, Fact) and before.fact.shape == (maps,):
        return before
    made: Value = b.Reshape(value, b.ints(-1))
    return made


@rule(P.Add(P.QConv(x, w, rest=True, domain=INTERNAL).named("conv"), y))
def conv_bias(b: Builder, x: Value, w: Value, y: Value, conv: Node) -> Value:
    """Constants that are added to the maps of a convolution in float32."""
    attrs = conv.attrs
    is_plain = attrs["dtype"] == F32.onnx and (attrs["low"], attrs["high"]) == (-math.inf, math.inf)
    need(is_plain and _optional(conv, 6) is None, "the convolution is finished")
    need(y.is_const, "not constant")
    row = _maps(b, y, w.tensor.dims[0], w.tensor.rank)
    inputs = [*conv.inputs[:6], row, *conv.inputs[7:]]
    made: Value = b.node("QConv", *inputs, domain=INTERNAL, **attrs).outputs[0]
    return made


def _factors(scale: Value) -> tuple[Value | None, Value]:
    """The scales of rows and of weights that a scale is the product of."""
    node = scale.node
    if node is None or node.op.key != ("", "Mul"):
        return None, scale
    first, second = node.inputs
    assert first is not None
    assert second is not None
    if first.is_const:
        first, second = second, first
    if all(d == 1 for d in first.tensor.dims) and second.is_const:
        return first, second
    return None, scale


@rule(P.Add(P.QMatMul(x, w, rest=True, domain=INTERNAL).named("product"), y))
def product_bias(b: Builder, x: Value, w: Value, y: Value, product: Node) -> Value:
    """A row that is added to a product in float32."""
    attrs = product.attrs
    is_plain = attrs["dtype"] == F32.onnx and (attrs["low"], attrs["high"]) == (-math.inf, math.inf)
    need(is_plain and _optional(product, 6) is None, "the product is finished")
    columns = w.tensor.dims[-2 if attrs["trans_w"] else -1]
    need(y.is_const and y.tensor.shape == (columns,), "no constant row")
    inputs = [*product.inputs[:6], y, *product.inputs[7:]]
    made: Value = b.node("QMatMul", *inputs, domain=INTERNAL, **attrs).outputs[0]
    return made


@rule(P.QLinearConv(x, rest=True).named("conv"))
def qlinear_conv(b: Builder, x: Value, conv: Node) -> Value:
    image, weights = Steps(x, *conv.inputs[1:3]), Steps(*conv.inputs[3:6])  # type: ignore[arg-type]
    made: Value = b.QConv(
        image.value, weights.value, image.scale, image.zero, weights.scale, weights.zero,
        _optional(conv, 8), conv.inputs[6], conv.inputs[7], domain=INTERNAL,
        dtype=conv.outputs[0].tensor.dtype.onnx, **conv.attrs,
    )  # fmt: skip
    return made


@rule(P.ConvInteger(x, w, rest=True).named("conv"))
def conv_integer(b: Builder, x: Value, w: Value, conv: Node) -> Value:
    made: Value = b.QConv(
        x, w, None, _optional(conv, 2), None, _optional(conv, 3), None, None, None,
        domain=INTERNAL, dtype=I32.onnx, **conv.attrs,
    )  # fmt: skip
    return made


@rule(P.DynamicQuantizeMatMul(x, w, y, rest=True, domain=MICROSOFT).named("product"))
def dynamic_product(b: Builder, x: Value, w: Value, y: Value, product: Node) -> Value:
    ranked(x, w, y)
    columns, bias = w.tensor.dims[-1], _optional(product, 4)
    need(bias is None or bias.tensor.shape == (columns,), "the bias is no row")
    need(y.tensor.rank <= 1, "scales are no row")
    steps, scale, zero = b.DynamicQuantizeLinear(x, outputs=3)
    made: Value = b.QMatMul(
        steps, w, scale, zero, y, _optional(product, 3), bias, None, None,
        domain=INTERNAL, dtype=F32.onnx,
    )  # fmt: skip
    return made


# What ends in steps first: a product whose result is quantized must not stop at float32.
STEPS: Final[tuple[Any, ...]] = (
    *steps_again, *conv_steps, *matmul_steps, *add_steps, *mean_steps, *max_steps, *concat_steps,
    *where_steps, *quantize_before, *integer_product, *integer_conv,
)  # fmt: skip
FLOATS: Final[tuple[Any, ...]] = (
    *conv_float, *matmul_float, *product_bias, *conv_bias,
)  # fmt: skip
# Ops on integers as kernels have them.
INTEGERS: Final[tuple[Any, ...]] = (*qlinear_conv, *conv_integer, *dynamic_product)

"""Quantized models: ops between DequantizeLinear and QuantizeLinear run on 8-bit integers.

A QDQ model wraps each op as DequantizeLinear, op, QuantizeLinear. The rules replace the three by
one op on quantized tensors: QConv, QMatMul, QAdd and QMean for arithmetic, the op itself where it
only moves or compares elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, I8, I32, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import INTERNAL, MICROSOFT
from sardonyx.ops.builder import Builder
from sardonyx.passes.rule import OpPattern, P, hole, known_size, need, present, ranked, rule, scalar

_EIGHT_BITS: Final = (U8, I8)
# Without the activation of FusedConv, which becomes bounds.
_CONV_ATTRS: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

# Pattern variables: activation, weights, the operands of a sum, a condition or bias, a scale.
x, w, a, c, y = hole("x"), hole("w"), hole("a"), hole("c"), hole("y")


@frozen
class QuantizedTensor:
    """An 8-bit tensor with its scale and zero point."""

    value: Value
    scale: Value
    zero: Value | None


# Left and right operand, and the bias.
_Operands = tuple[QuantizedTensor, QuantizedTensor, Value | None]


def _conversion_operands(node: Node) -> QuantizedTensor:
    """The operands of a DequantizeLinear or QuantizeLinear with a float32 scale."""
    value, scale = input_of(node, 0), input_of(node, 1)
    ranked(value, scale)
    need(scale.tensor.dtype is F32, "the scale is not float32")
    need(not node.attrs["block_size"], "scales are for blocks")
    return QuantizedTensor(value, scale, optional_input(node, 2))


def _per_tensor(tensor: QuantizedTensor) -> QuantizedTensor:
    """The tensor, if it has one scale for all elements."""
    need(all(d == 1 for d in tensor.scale.tensor.dims), "there is more than one scale")
    return tensor


def _dequantized(value: Value | None) -> QuantizedTensor:
    """The 8-bit tensor that a value is dequantized from."""
    node = present(None if value is None else value.node, "not dequantized")
    need(node.op.key == ("", "DequantizeLinear"), "not dequantized")
    tensor = _conversion_operands(node)
    need(tensor.value.tensor.dtype in _EIGHT_BITS, "not an 8-bit tensor")
    need(node.outputs[0].tensor.dtype is F32, "not dequantized to float32")
    return tensor


def _per_tensor_input(value: Value | None) -> QuantizedTensor:
    """The 8-bit tensor of an activation, which has one scale."""
    return _per_tensor(_dequantized(value))


def _weights(value: Value, axis: int) -> QuantizedTensor:
    """Constant weights, with one scale or one per position of an axis."""
    tensor = _dequantized(value)
    node = value.node
    assert node is not None
    # The kernels read weights that are packed at compile time.
    need(tensor.value.is_const, "the weights are not constant")
    # Per-channel scales must be along the output channels or columns.
    if any(d != 1 for d in tensor.scale.tensor.dims):
        rank = tensor.value.tensor.rank
        need(node.attrs["axis"] % rank == axis % rank, "scales are along another axis")
    return tensor


def _result(q: Node) -> QuantizedTensor:
    """Scale and zero point of a QuantizeLinear; its `value` is the float input."""
    tensor = _per_tensor(_conversion_operands(q))
    need(q.outputs[0].tensor.dtype in _EIGHT_BITS, "not quantized to 8 bits")
    # QuantizeLinear may divide in float16, with other results.
    need(q.attrs["precision"] in (0, F32.onnx), "divided in another precision")
    return tensor


def _bias(b: Builder, value: Value | None, columns: Size) -> Value | None:
    """A bias as a float32 vector, from a constant or from one that is dequantized."""
    if value is None:
        return None
    if value.const is not None:
        array = value.const.read()
    else:
        node = present(value.node, "the bias is not constant")
        consts = [None if v is None else v.const for v in node.inputs]
        is_dequantized = node.op.key == ("", "DequantizeLinear") and None not in consts
        need(is_dequantized, "the bias is not constant")
        # A bias is int32 with the product of both scales; its float32 value is computed now.
        array = node.op.run([c.read() for c in consts if c is not None], node.attrs)[0]
    size = known_size(columns, "the number of columns is unknown")
    need(array.size in (1, size), "the bias is not a vector")
    return b.const(np.broadcast_to(array.reshape(-1), (size,)).astype(np.float32), F32)


def _bounds(act: Node | None) -> tuple[float, float]:
    """The interval that an activation clamps to."""
    if act is None:
        return -math.inf, math.inf
    if act.op.name == "FusedConv":
        name, params = act.attrs["activation"], list(act.attrs["activation_params"] or [])
        is_clamp = name == b"Relu" or (name == b"Clip" and len(params) == 2)
        need(is_clamp, "the activation does not only clamp")
        return (0.0, math.inf) if name == b"Relu" else (float(params[0]), float(params[1]))
    if act.op.name == "Relu":
        return 0.0, math.inf
    bounds = ((-math.inf, optional_input(act, 1)), (math.inf, optional_input(act, 2)))
    low, high = (
        unbounded if bound is None else present(scalar(bound), "bounds are not constant")
        for unbounded, bound in bounds
    )
    return low, high


def _clamped(inner: OpPattern) -> tuple[OpPattern, ...]:
    """A pattern without an activation, or with one that only clamps."""
    # The kernels clamp while they round to 8 bits, so Relu and Clip are free.
    return inner, P.Relu(inner).named("act"), P.Clip(inner, rest=True).named("act")


def _quantized(*inner: OpPattern) -> tuple[OpPattern, ...]:
    """Patterns whose result is quantized."""
    return tuple(P.QuantizeLinear(i, rest=True).named("q") for i in inner)


_CONVS: Final = (
    P.Conv(x, w, rest=True).named("conv"),
    P.FusedConv(x, w, rest=True, domain=MICROSOFT).named("conv"),
)


def _conv(b: Builder, conv: Node, act: Node | None, q: Node | None) -> Value:
    """A QConv with an 8-bit or, without QuantizeLinear, a float32 result."""
    # FusedConv can add a residual, which QConv cannot.
    need(optional_input(conv, 3) is None, "FusedConv has a residual input")
    image, weights = _per_tensor_input(conv.inputs[0]), _weights(input_of(conv, 1), 0)
    bias = _bias(b, optional_input(conv, 2), weights.value.tensor.dims[0])
    # The activation of FusedConv is an attribute, that of Conv a separate node.
    low, high = _bounds(conv if conv.op.name == "FusedConv" else act)
    attrs = {k: conv.attrs[k] for k in _CONV_ATTRS}
    return _quantized_node(b, "QConv", (image, weights, bias), q, low=low, high=high, **attrs)


def _quantized_node(
    b: Builder, op: str, operands: _Operands, q: Node | None, **attrs: Any
) -> Value:
    """A QConv or QMatMul, which have the same inputs; without `q` the result is float32."""
    left, right, bias = operands
    result = (None, None) if q is None else (_result(q).scale, _result(q).zero)
    dtype = F32.onnx if q is None else q.outputs[0].tensor.dtype.onnx
    inputs = (left.value, right.value, left.scale, left.zero, right.scale, right.zero, bias)
    return b.node(op, *inputs, *result, domain=INTERNAL, dtype=dtype, **attrs).outputs[0]


@rule(*_quantized(*_clamped(_CONVS[0]), _CONVS[1]), aliases="conv_steps")
def quantized_conv(
    b: Builder, x: Value, w: Value, conv: Node, q: Node, act: Node | None = None
) -> Value:
    """A QDQ convolution with an 8-bit result."""
    return _conv(b, conv, act, q)


@rule(*_CONVS, aliases="conv_float")
def quantized_conv_to_float(b: Builder, x: Value, w: Value, conv: Node) -> Value:
    """A convolution of 8-bit operands with a float32 result."""
    return _conv(b, conv, None, None)


def _gemm(b: Builder, gemm: Node, act: Node | None, q: Node | None) -> Value:
    """A QMatMul with an 8-bit or, without QuantizeLinear, a float32 result."""
    # QMatMul has a flag for transposed weights, none for transposed activations. MatMul has no
    # attributes at all.
    attrs = {"alpha": 1, "beta": 1, "transA": 0, "transB": 0, **gemm.attrs}
    is_plain = attrs["alpha"] == attrs["beta"] == 1 and not attrs["transA"]
    need(is_plain, "alpha, beta or transA is set")
    # Scales per column: the output axis of the weights.
    axis = 0 if attrs["transB"] else 1
    weights = _weights(input_of(gemm, 1), axis)
    need(weights.value.tensor.rank == 2, "the weights are not a matrix")
    bias = _bias(b, optional_input(gemm, 2), weights.value.tensor.dims[axis])
    low, high = _bounds(act)
    operands = _per_tensor_input(gemm.inputs[0]), weights, bias
    return _quantized_node(b, "QMatMul", operands, q, low=low, high=high, trans_w=1 - axis)


_MATMULS: Final = (P.Gemm(x, w, rest=True).named("gemm"), P.MatMul(x, w).named("gemm"))


@rule(*_quantized(*(p for inner in _MATMULS for p in _clamped(inner))), aliases="matmul_steps")
def quantized_matmul(
    b: Builder, x: Value, w: Value, gemm: Node, q: Node, act: Node | None = None
) -> Value:
    """A QDQ matmul with an 8-bit result."""
    return _gemm(b, gemm, act, q)


@rule(*_MATMULS, aliases="matmul_float")
def quantized_matmul_to_float(b: Builder, x: Value, w: Value, gemm: Node) -> Value:
    """A matmul of 8-bit operands with a float32 result."""
    return _gemm(b, gemm, None, None)


@rule(*_quantized(*_clamped(P.Add(a, c))), aliases="add_steps")
def quantized_add(b: Builder, a: Value, c: Value, q: Node, act: Node | None = None) -> Value:
    """A QDQ addition."""
    left, right, result = _per_tensor_input(a), _per_tensor_input(c), _result(q)
    ranked(left.value, right.value)
    # Adding one number is a table.
    is_number = any(all(d == 1 for d in v.value.tensor.dims) for v in (left, right))
    is_same = left.value.tensor.shape == right.value.tensor.shape
    need(is_same or not is_number, "one operand is a number")
    low, high = _bounds(act)
    return b.QAdd(
        left.value, left.scale, left.zero, right.value, right.scale, right.zero,
        result.scale, result.zero, domain=INTERNAL,
        dtype=q.outputs[0].tensor.dtype.onnx, low=low, high=high,
    )  # fmt: skip


@rule(
    *_quantized(P.ReduceMean(x, rest=True).named("mean")),
    aliases="mean_steps",
)
def quantized_mean(b: Builder, x: Value, mean: Node, q: Node) -> Value:
    """A QDQ mean over all pixels of images."""
    image, result = _per_tensor_input(x), _result(q)
    rank = image.value.tensor.rank
    need(rank > 2, "not an image")
    axes = present(optional_input(mean, 1), "not over all spatial axes").tensor.ints or ()
    reduced = sorted(i % rank for i in axes)
    is_last = reduced == [*range(1, rank - 1)]
    need(is_last or reduced == [*range(2, rank)], "not over all spatial axes")
    need(mean.attrs["keepdims"], "dims are dropped")
    return b.QMean(
        image.value, image.scale, image.zero, result.scale, result.zero,
        domain=INTERNAL, dtype=q.outputs[0].tensor.dtype.onnx, channels_last=int(is_last),
    )  # fmt: skip


def _is_same_number(value: Value | None, other: Value | None) -> bool:
    """Whether two scales or zero points are one value, or constants with the same number."""
    if value is None or other is None or value is other:
        return value is other
    one, two = scalar(value), scalar(other)
    return one is not None and one == two and value.tensor.dtype is other.tensor.dtype


def _has_same_scale(before: QuantizedTensor, after: QuantizedTensor) -> bool:
    """Whether both tensors have the same scale and zero point: equal codes are equal numbers."""
    pairs = (before.scale, after.scale), (before.zero, after.zero)
    return all(_is_same_number(*pair) for pair in pairs)


def _need_same_scale(before: QuantizedTensor, after: QuantizedTensor) -> None:
    """Abandon a rewrite unless both tensors have the same scale and zero point."""
    need(_has_same_scale(before, after), "scales or zero points differ")


@rule(*_quantized(P.DequantizeLinear(x, rest=True).named("inner")), aliases="steps_again")
def requantize_noop(b: Builder, x: Value, inner: Node, q: Node) -> Value:
    """Remove DequantizeLinear and QuantizeLinear with the same scale and zero point."""
    before, after = _per_tensor(_conversion_operands(inner)), _result(q)
    need(before.value.tensor.dtype is q.outputs[0].tensor.dtype, "types differ")
    _need_same_scale(before, after)
    return x


# They permute or regroup elements, so they commute with quantization.
_MOVES: Final = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze")


@rule(
    *_quantized(*(getattr(P, op)(y, rest=True).named("move") for op in _MOVES)),
    aliases="quantize_before",
)
def quantize_before_move(b: Builder, y: Value, move: Node, q: Node) -> Value:
    """Quantize before a layout op: it then moves a quarter of the bytes."""
    _result(q)
    ranked(y)
    quantized = b.QuantizeLinear(y, *q.inputs[1:], **q.attrs)
    return b.node(move.op.name, quantized, *move.inputs[1:], **move.attrs).outputs[0]


def _same_scale_inputs(values: Iterable[Value | None], q: Node) -> list[Value]:
    """The 8-bit inputs of an op that keeps codes: all must be quantized as its result is."""
    tensors, result = [_per_tensor_input(v) for v in values], _result(q)
    for tensor in tensors:
        need(tensor.value.tensor.dtype is q.outputs[0].tensor.dtype, "types differ")
        _need_same_scale(tensor, result)
    return [tensor.value for tensor in tensors]


@rule(*_quantized(P.MaxPool(x).named("pool")), aliases="max_steps")
def quantized_max_pool(b: Builder, x: Value, pool: Node, q: Node) -> Value:
    """MaxPool on the 8-bit tensor: quantization keeps the order of elements."""
    need(len(pool.outputs) == 1, "indices are needed")
    return b.MaxPool(*_same_scale_inputs([x], q), **pool.attrs)


@rule(*_quantized(P.Concat(x, rest=True).named("concat")), aliases="concat_steps")
def quantized_concat(b: Builder, x: Value, concat: Node, q: Node) -> Value:
    """Concat of 8-bit tensors, each quantized as the result is: by a table where scales differ."""
    result, dtype = _result(q), q.outputs[0].tensor.dtype

    def quantized(part: Value | None) -> Value:
        tensor = _per_tensor_input(part)
        is_same = tensor.value.tensor.dtype is dtype and _has_same_scale(tensor, result)
        return tensor.value if is_same else b.QuantizeLinear(part, *q.inputs[1:], **q.attrs)

    return b.Concat(*map(quantized, concat.inputs), **concat.attrs)


@rule(*_quantized(P.Where(c, x, y)), aliases="where_steps")
def quantized_where(b: Builder, c: Value, x: Value, y: Value, q: Node) -> Value:
    """Where between 8-bit tensors with the scale of the result."""
    return b.Where(c, *_same_scale_inputs((x, y), q))


# The accumulators of MatMulInteger and ConvInteger are exact int32: converting and scaling them in
# the same op gives the same float32 results.
@rule(
    P.Mul(P.Cast(P.MatMulInteger(x, w, rest=True).named("integer")).named("cast"), y),
    aliases="integer_product",
)
def scaled_matmul_integer(
    b: Builder, x: Value, w: Value, y: Value, integer: Node, cast: Node
) -> Value:
    """MatMulInteger, Cast and Mul of dynamic quantization as one QMatMul."""
    ranked(x, w, y)
    need(cast.outputs[0].tensor.dtype is F32, "not converted to float32")
    need(y.tensor.rank <= 1, "scales are not a vector")
    x_scale, w_scale = _factors(y)
    columns = w.tensor.dims[-1]
    is_row = all(d == 1 for d in w_scale.tensor.dims) or w_scale.tensor.dims == (columns,)
    need(is_row, "scales are not a vector")
    zeros = optional_input(integer, 2), optional_input(integer, 3)
    inputs = (x, w, x_scale, zeros[0], w_scale, zeros[1], None, None, None)
    return b.QMatMul(*inputs, domain=INTERNAL, dtype=F32.onnx)


_CONV_INTEGER: Final = P.ConvInteger(x, rest=True).named("integer")


@rule(
    P.Mul(P.Cast(_CONV_INTEGER).named("cast"), y),
    P.Mul(P.Cast(P.Add(_CONV_INTEGER, c)).named("cast"), y),
    aliases="integer_conv",
)
def scaled_conv_integer(
    b: Builder, x: Value, y: Value, integer: Node, cast: Node, c: Value | None = None
) -> Value:
    """ConvInteger, an optional bias, Cast and Mul of dynamic quantization as one QConv."""
    w = input_of(integer, 1)
    ranked(x, w, y)
    need(cast.outputs[0].tensor.dtype is F32, "not converted to float32")
    # QConv has one scale for the activations, into which the factor goes.
    need(all(d == 1 for d in y.tensor.dims), "there is more than one scale")
    channels, rank = w.tensor.dims[0], w.tensor.rank
    need(y.tensor.rank <= rank, "more dims")
    bias = None if c is None else _per_channel(b, c, channels, rank)
    zeros = optional_input(integer, 2), optional_input(integer, 3)
    inputs = (x, w, y, zeros[0], None, zeros[1], bias, None, None)
    return b.QConv(*inputs, domain=INTERNAL, dtype=F32.onnx, **integer.attrs)


def _per_channel(b: Builder, value: Value, channels: object, rank: int) -> Value:
    """A bias [channels, 1, ..] per output channel, as a vector."""
    ranked(value)
    shape = (channels, *(1,) * (rank - 2))
    need(channels != 1 and value.tensor.dims in (shape, (1, *shape)), "not one number per channel")
    node = value.node
    # Exporters reshape a vector for broadcasting: read it directly.
    before = node.inputs[0] if node is not None and node.op.key == ("", "Reshape") else None
    if before is not None and isinstance(before.fact, Fact) and before.fact.shape == (channels,):
        return before
    return b.Reshape(value, b.ints(-1))


def _with_bias(b: Builder, node: Node, bias: Value) -> Value:
    """A QConv or QMatMul with a bias; its result must still be plain float32."""
    attrs = node.attrs
    is_bounded = (attrs["low"], attrs["high"]) != (-math.inf, math.inf)
    need(attrs["dtype"] == F32.onnx and not is_bounded, "it has bounds or an 8-bit result")
    need(optional_input(node, 6) is None, "it has a bias")
    inputs = [*node.inputs[:6], bias, *node.inputs[7:]]
    return b.node(node.op.name, *inputs, domain=INTERNAL, **attrs).outputs[0]


@rule(P.Add(P.QConv(x, w, rest=True, domain=INTERNAL).named("conv"), y), aliases="conv_bias")
def quantized_conv_bias(b: Builder, x: Value, w: Value, y: Value, conv: Node) -> Value:
    """Fold a constant bias per channel into a QConv with a float32 result."""
    need(y.is_const, "not constant")
    return _with_bias(b, conv, _per_channel(b, y, w.tensor.dims[0], w.tensor.rank))


@rule(P.Add(P.QMatMul(x, w, rest=True, domain=INTERNAL).named("matmul"), y), aliases="product_bias")
def quantized_matmul_bias(b: Builder, x: Value, w: Value, y: Value, matmul: Node) -> Value:
    """Fold a constant bias into a QMatMul with a float32 result."""
    # Weights are [K, N], or [N, K] if trans_w is set.
    columns = w.tensor.dims[-2 if matmul.attrs["trans_w"] else -1]
    need(y.is_const and y.tensor.shape == (columns,), "not a constant vector")
    return _with_bias(b, matmul, y)


def _factors(scale: Value) -> tuple[Value | None, Value]:
    """The scales of activations and weights, if a scale is their product."""
    node = scale.node
    if node is None or node.op.key != ("", "Mul"):
        return None, scale
    first, second = input_of(node, 0), input_of(node, 1)
    # The scale of the activations is computed, that of the weights is constant.
    if first.is_const:
        first, second = second, first
    if all(d == 1 for d in first.tensor.dims) and second.is_const:
        return first, second
    return None, scale


@rule(P.QLinearConv(x, rest=True).named("conv"))
def qlinear_conv(b: Builder, x: Value, conv: Node) -> Value:
    """QLinearConv as QConv."""
    _, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = conv.inputs[:8]
    inputs = (x, w, x_scale, x_zero, w_scale, w_zero, optional_input(conv, 8), y_scale, y_zero)
    return b.QConv(*inputs, domain=INTERNAL, dtype=conv.outputs[0].tensor.dtype.onnx, **conv.attrs)


@rule(P.ConvInteger(x, w, rest=True).named("conv"))
def conv_integer(b: Builder, x: Value, w: Value, conv: Node) -> Value:
    """ConvInteger as QConv with an int32 result."""
    zeros = optional_input(conv, 2), optional_input(conv, 3)
    inputs = (x, w, None, zeros[0], None, zeros[1], None, None, None)
    return b.QConv(*inputs, domain=INTERNAL, dtype=I32.onnx, **conv.attrs)


@rule(P.ConvInteger(x, w, rest=True).named("conv"))
def pointwise_conv_integer(b: Builder, x: Value, w: Value, conv: Node) -> Value:
    """A 1x1 ConvInteger as MatMulInteger of its weights by the image: no layout changes."""
    ranked(x, w)
    zero, image = optional_input(conv, 3), present(x.tensor.static, "sizes are not known")
    maps, channels, *kernel = present(w.tensor.static, "sizes are not known")
    need(all(d == 1 for d in (*kernel, *(zero.tensor.dims if zero else ()))), "not 1x1")
    need(conv.attrs["group"] == 1 and not any(conv.attrs["pads"] or ()), "groups or padding")
    need(all(stride == 1 for stride in conv.attrs["strides"] or ()), "strides")
    pixels = b.Reshape(x, b.ints(*image[:2], math.prod(image[2:])))
    weights = b.Reshape(w, b.ints(maps, channels))
    y = b.MatMulInteger(weights, pixels, zero, optional_input(conv, 2))
    return b.Reshape(y, b.ints(image[0], maps, *image[2:]))


@rule(
    P.DynamicQuantizeMatMul(x, w, y, rest=True, domain=MICROSOFT).named("matmul"),
    aliases="dynamic_product",
)
def dynamic_quantize_matmul(b: Builder, x: Value, w: Value, y: Value, matmul: Node) -> Value:
    """DynamicQuantizeMatMul as DynamicQuantizeLinear and QMatMul."""
    ranked(x, w, y)
    columns, bias = w.tensor.dims[-1], optional_input(matmul, 4)
    need(bias is None or bias.tensor.shape == (columns,), "the bias is not a vector")
    need(y.tensor.rank <= 1, "scales are not a vector")
    # One scale for the whole activation, computed in each run.
    tensor, scale, zero = b.node("DynamicQuantizeLinear", x, outputs=3).outputs
    inputs = (tensor, w, scale, zero, y, optional_input(matmul, 3), bias, None, None)
    return b.QMatMul(*inputs, domain=INTERNAL, dtype=F32.onnx)


# Before FLOAT_RESULTS: a matmul whose result is quantized must not get a float32 result.
QUANTIZED_RESULTS: Final[tuple[Any, ...]] = (
    *requantize_noop, *quantized_conv, *quantized_matmul, *quantized_add, *quantized_mean,
    *quantized_max_pool, *quantized_concat, *quantized_where, *quantize_before_move,
    *scaled_matmul_integer, *scaled_conv_integer,
)  # fmt: skip
FLOAT_RESULTS: Final[tuple[Any, ...]] = (
    *quantized_conv_to_float, *quantized_matmul_to_float, *quantized_matmul_bias,
    *quantized_conv_bias,
)  # fmt: skip
# Needed at every optimization level: there are no other kernels for these ops.
INTEGER_OPS: Final[tuple[Any, ...]] = (
    *qlinear_conv, *pointwise_conv_integer, *conv_integer, *dynamic_quantize_matmul,
)  # fmt: skip

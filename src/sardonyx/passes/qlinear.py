"""Decompositions of quantized com.microsoft ops into standard and internal ops.

Most become DequantizeLinear, the standard op and QuantizeLinear: the rules of quantize.py then
choose 8-bit kernels as for any QDQ model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from sardonyx.graph.const import Recipe
from sardonyx.graph.constant import constant
from sardonyx.graph.dtype import F32, I32, DType
from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.graph.op import INTERNAL
from sardonyx.ops import lookup
from sardonyx.ops.arrays import Array
from sardonyx.ops.builder import Builder
from sardonyx.passes.rule import need, present, ranked

Outputs = tuple[Value | None, ...]


def _scalar(b: Builder, value: Value | None) -> Value | None:
    """A scale or zero point with one element, as a scalar if its shape is unknown."""
    # Models may declare [1] or no shape at all; the standard op needs a scalar or [1].
    if value is None or all(d == 1 for d in value.tensor.dims):
        return value
    return b.Reshape(value, b.ints())


def _dequantize(b: Builder, x: Value, scale: Value | None, zero: Value | None) -> Value:
    """DequantizeLinear with one scale."""
    return b.DequantizeLinear(x, _scalar(b, scale), _scalar(b, zero))


def _quantize(b: Builder, y: Value, scale: Value | None, zero: Value | None, dtype: DType) -> Value:
    """QuantizeLinear with one scale, to the type of the zero point or else `dtype`."""
    # QuantizeLinear takes its type from the zero point, if there is one.
    output_dtype = dtype.onnx if zero is None else 0
    return b.QuantizeLinear(y, _scalar(b, scale), _scalar(b, zero), output_dtype=output_dtype)


def _binary(b: Builder, node: Node) -> Outputs:
    """QLinearAdd and QLinearMul."""
    a_scale, a_zero, c_scale, c_zero, y_scale, y_zero = (
        optional(node, i) for i in (1, 2, 4, 5, 6, 7)
    )
    a, c = given(node, 0), given(node, 3)
    op = node.op.name.removeprefix("QLinear")
    operands = _dequantize(b, a, a_scale, a_zero), _dequantize(b, c, c_scale, c_zero)
    y = b.node(op, *operands).outputs[0]
    return (_quantize(b, y, y_scale, y_zero, a.tensor.dtype),)


def _unary(compute: Callable[[Builder, Node, Value], Value]) -> Callable[[Builder, Node], Outputs]:
    """The decomposition of an op with one quantized input, from its float computation."""

    def lower(b: Builder, node: Node) -> Outputs:
        x, (x_scale, x_zero, y_scale, y_zero) = (
            given(node, 0),
            (optional(node, i) for i in range(1, 5)),
        )
        y = compute(b, node, _dequantize(b, x, x_scale, x_zero))
        return (_quantize(b, y, y_scale, y_zero, x.tensor.dtype),)

    return lower


def _softmax(b: Builder, node: Node, x: Value) -> Value:
    """QLinearSoftmax."""
    axis, rank = node.attrs["axis"], x.tensor.rank
    need(rank > 0, "one number has no axis")
    # Before opset 13 Softmax flattened its input to a matrix at the axis.
    if node.attrs["opset"] >= 13:
        made: Value = b.Softmax(x, axis=axis)
    else:
        rows = b.Softmax(b.Flatten(x, axis=axis % rank), axis=1)
        made = b.Reshape(rows, b.Shape(x), allowzero=1)
    return made


def _permuted_channels(b: Builder, x: Value, *, is_last: object) -> Value:
    """NCHW images as NHWC (`is_last`), or NHWC images as NCHW."""
    rank = x.tensor.rank
    perm = (0, *range(2, rank), 1) if is_last else (0, rank - 1, *range(1, rank - 1))
    return b.Transpose(x, perm=perm)


def _in_nchw(b: Builder, x: Value, apply: Callable[[Value], Value], is_last: object) -> Value:
    """Apply an op to images in NCHW, whatever layout they have."""
    if not is_last:
        return apply(x)
    # Layout propagation removes the Transposes again where kernels are NHWC.
    return _permuted_channels(b, apply(_permuted_channels(b, x, is_last=False)), is_last=True)


def _average(b: Builder, node: Node, x: Value) -> Value:
    """QLinearAveragePool and QLinearGlobalAveragePool."""
    attrs = {k: v for k, v in node.attrs.items() if k != "channels_last"}
    name = node.op.name.removeprefix("QLinear")
    return _in_nchw(
        b, x, lambda v: b.node(name, v, **attrs).outputs[0], node.attrs["channels_last"]
    )


def _mean(b: Builder, node: Node, x: Value) -> Value:
    """QLinearReduceMean."""
    # No axes: all of them.
    axes = node.attrs["axes"] or range(x.tensor.rank)
    return b.ReduceMean(x, b.ints(*axes), keepdims=node.attrs["keepdims"])


def _concat(b: Builder, node: Node) -> Outputs:
    """QLinearConcat."""
    # The inputs after these are triples of tensor, scale and zero point.
    y_scale, y_zero, *rest = (given(node, i) for i in range(len(node.inputs)))
    parts = [_dequantize(b, *rest[i : i + 3]) for i in range(0, len(rest), 3)]
    y = b.Concat(*parts, axis=node.attrs["axis"])
    return (_quantize(b, y, y_scale, y_zero, y_zero.tensor.dtype),)


def _where(b: Builder, node: Node) -> Outputs:
    """QLinearWhere."""
    condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = (
        given(node, i) for i in range(9)
    )
    z = b.Where(condition, _dequantize(b, x, x_scale, x_zero), _dequantize(b, y, y_scale, y_zero))
    return (_quantize(b, z, z_scale, z_zero, x.tensor.dtype),)


def _conv(b: Builder, node: Node) -> Outputs:
    """QLinearConv of com.microsoft: the standard op, in either layout."""
    x, rest = given(node, 0), node.inputs[1:]
    attrs = {k: v for k, v in node.attrs.items() if k != "channels_last"}
    # Scales and zero points of activations; those of the weights may be per channel.
    singles = [_scalar(b, v) if i in (0, 1, 5, 6) else v for i, v in enumerate(rest)]
    is_last = node.attrs["channels_last"]
    return (_in_nchw(b, x, lambda v: b.QLinearConv(v, *singles, **attrs), is_last),)


def _max_pool(b: Builder, node: Node) -> Outputs:
    """NhwcMaxPool."""
    return (_in_nchw(b, given(node, 0), lambda v: b.MaxPool(v, **node.attrs), True),)


def _convert(b: Builder, node: Node) -> Outputs:
    """QuantizeLinear and DequantizeLinear of com.microsoft."""
    from sardonyx.ops.quantize.convert_contrib import standard_attrs

    attrs = standard_attrs(node.op, node.attrs["axis"])
    return (b.node(node.op.name, *node.inputs, **attrs).outputs[0],)


def _gemm(b: Builder, node: Node) -> Outputs:
    """QGemm: QMatMul, or MatMulInteger where C is not a vector."""
    a, a_scale, a_zero, w, w_scale, w_zero, c, y_scale, y_zero = (
        optional(node, i) for i in range(9)
    )
    assert a is not None
    attrs, columns = node.attrs, node.outputs[0].tensor.dims[1]
    x_scale = _scalar(b, a_scale)
    # alpha goes into the scale of the activations.
    if attrs["alpha"] != 1:
        x_scale = b.Mul(x_scale, attrs["alpha"])
    assert w is not None
    left = b.Transpose(a, perm=(1, 0)) if attrs["transA"] else a
    is_transposed = bool(attrs["transB"] and w.is_const)  # packing transposes constants
    right = b.Transpose(w, perm=(1, 0)) if attrs["transB"] and not is_transposed else w
    is_vector = c is None or (c.tensor.dims[-1:] == (columns,) and c.tensor.dims[:-1] in ((), (1,)))
    if is_vector:
        bias = c if c is None or c.tensor.rank == 1 else b.Reshape(c, b.ints(-1))
        result = (None, None) if y_zero is None else (_scalar(b, y_scale), _scalar(b, y_zero))
        y = b.QMatMul(
            left, right, x_scale, _scalar(b, a_zero), w_scale, w_zero, bias, *result,
            domain=INTERNAL, dtype=node.outputs[0].tensor.dtype.onnx, trans_w=int(is_transposed),
        )  # fmt: skip
        return (y,)
    right = b.Transpose(right, perm=(1, 0)) if is_transposed else right
    # C is int32 with the scale of the accumulators: added before scaling.
    total = b.Add(b.MatMulInteger(left, right, _scalar(b, a_zero), w_zero), c)
    y = b.Mul(b.Cast(total, to=F32.onnx), b.Mul(x_scale, w_scale))
    return (y if y_zero is None else _quantize(b, y, y_scale, y_zero, y_zero.tensor.dtype),)


def _attention(b: Builder, node: Node) -> Outputs:
    """QAttention: a quantized projection, then attention in float32."""
    from sardonyx.ops.attention.projected import ProjectedInputs
    from sardonyx.ops.attention.quantized import projected_attrs
    from sardonyx.passes.multi_head import attend_projected

    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (optional(node, i) for i in range(9))
    assert bias is not None
    need(bias.tensor.dtype is F32, "the result is not float32")
    whole = b.QMatMul(
        x, w, _scalar(b, x_scale), _scalar(b, x_zero), w_scale, w_zero, bias, None, None,
        domain=INTERNAL, dtype=F32.onnx,
    )  # fmt: skip
    inputs = ProjectedInputs(x, w, bias, mask, past, None, None)
    # The cache is an output of its own; without a reader it is not computed.
    has_present = len(node.outputs) > 1 and node.outputs[1].is_used
    return attend_projected(b, inputs, whole, projected_attrs(node.attrs), has_present)


def _gather_rows(b: Builder, table: Value, ids: Value) -> Value:
    """Rows of a table; negative ids are out of range, not counted from the end."""
    size = table.tensor.dims[0]
    need(isinstance(size, int), "the length of the table is unknown")
    # Gather accepts negative indices: replaced by an index that it rejects.
    checked = b.Where(b.Less(ids, 0), b.const(size, I32), ids)
    return b.Gather(table, checked, axis=0)


def _embed(b: Builder, node: Node) -> Outputs:
    """QEmbedLayerNormalization."""
    ids, segments, words, places, segment_table, gamma, beta, mask, *scales = (
        optional(node, i) for i in range(18)
    )
    assert ids is not None
    assert words is not None
    assert places is not None
    pairs = list(zip(scales[:5], scales[5:], strict=True))
    total = _dequantize(b, _gather_rows(b, words, ids), *pairs[0])
    rows = b.Shape(ids, start=1, end=2)
    total = b.Add(total, _dequantize(b, b.Slice(places, b.ints(0), rows, b.ints(0)), *pairs[1]))
    if segments is not None and segment_table is not None:
        total = b.Add(total, _dequantize(b, _gather_rows(b, segment_table, segments), *pairs[2]))
    vectors = [_dequantize(b, v, *k) for v, k in zip((gamma, beta), pairs[3:], strict=True) if v]
    y = b.LayerNormalization(total, *vectors, axis=-1, epsilon=node.attrs["epsilon"])
    # The count of unmasked tokens, which is 0 without a mask.
    if mask is None:
        count = b.Expand(b.const(0, I32), b.Shape(ids, start=0, end=1))
    else:
        seen = b.Cast(b.Equal(mask, 1), to=I32.onnx)
        count = b.ReduceSum(seen, b.ints(1), keepdims=0)
    return y, count


def _bnb4(b: Builder, node: Node) -> Outputs:
    """MatMulBnb4: the weights are a recipe, dequantized once when they are packed."""
    from sardonyx.ops.nbits.bnb4 import storage_attrs

    x, q, absmax = (given(node, i) for i in range(3))
    codes, scales = (present(v.const, "the weights are not constant") for v in (q, absmax))
    attrs, op = node.attrs, lookup(INTERNAL, "Bnb4Weights")
    assert op is not None
    fact = (F32, (attrs["N"], attrs["K"]))
    weights = constant(Recipe(op, (codes, scales), storage_attrs(attrs), 0, fact))
    # The recipe yields [N, K], which a flag of the matmul transposes.
    right = b.Transpose(weights, perm=(1, 0)) if attrs["transB"] else weights
    dtype = x.tensor.dtype
    y = b.MatMul(x if dtype is F32 else b.Cast(x, to=F32.onnx), right)
    return (y if dtype is F32 else b.Cast(y, to=dtype.onnx),)


def _lstm(b: Builder, node: Node) -> Outputs:
    """DynamicQuantizeLSTM: one QMatMul for the inputs of all steps and directions."""
    x, w, r, bias, lens, initial_h, initial_c, p, *scales = (optional(node, i) for i in range(12))
    assert w is not None
    assert r is not None
    need(w.is_const and r.is_const, "the weights are not constant")
    shape = w.tensor.static
    need(shape is not None and all(v is not None and v.is_const for v in scales), "scales vary")
    assert shape is not None
    directions, inner, columns = shape
    w_scale, w_zero, r_scale, r_zero = (v.const.read() for v in scales if v and v.const)
    # [directions, inner, columns] as one matrix [inner, directions * columns].
    weights = b.Reshape(b.Transpose(w, perm=(1, 0, 2)), b.ints(inner, directions * columns))
    quantized, scale, zero = b.node("DynamicQuantizeLinear", x, outputs=3).outputs
    if bias is not None:
        # ONNX has a bias for the input and one for the state: only their sum matters.
        both = b.Reshape(bias, b.ints(directions, 2, columns))
        bias = b.Reshape(b.ReduceSum(both, b.ints(1), keepdims=0), b.ints(-1))
    gates = b.QMatMul(
        quantized, weights, scale, zero, b.const(_per_column(w_scale, shape)),
        b.const(_per_column(w_zero, shape)) if w_zero.any() else None, bias, None, None,
        domain=INTERNAL, dtype=F32.onnx,
    )  # fmt: skip
    return b.node(
        "QLSTM",
        gates, r, b.const(r_scale), b.const(r_zero) if r_zero.any() else None, lens, initial_h,
        initial_c, p, domain=INTERNAL, outputs=len(node.outputs), **node.attrs,
    ).outputs  # fmt: skip


def _per_column(row: Array, shape: tuple[int, ...]) -> Array:
    """One number per column of all directions, from one per direction or per column."""
    directions, _, columns = shape
    each = row.reshape(directions, -1)
    return np.broadcast_to(each, (directions, columns)).reshape(-1).copy()


# By op name; decompose.QUANTIZED lists the same ops without importing this module.
DECOMPOSITIONS: Final[dict[str, Callable[[Builder, Node], Outputs]]] = {
    "DequantizeLinear": _convert,
    "DynamicQuantizeLSTM": _lstm,
    "MatMulBnb4": _bnb4,
    "NhwcMaxPool": _max_pool,
    "QAttention": _attention,
    "QEmbedLayerNormalization": _embed,
    "QGemm": _gemm,
    "QLinearAdd": _binary,
    "QLinearAveragePool": _unary(_average),
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QLinearGlobalAveragePool": _unary(_average),
    "QLinearLeakyRelu": _unary(lambda b, node, x: b.LeakyRelu(x, alpha=node.attrs["alpha"])),
    "QLinearMul": _binary,
    "QLinearReduceMean": _unary(_mean),
    "QLinearSigmoid": _unary(lambda b, node, x: b.Sigmoid(x)),
    "QLinearSoftmax": _unary(_softmax),
    "QLinearWhere": _where,
    "QuantizeLinear": _convert,
}


def decomposed(b: Builder, node: Node) -> Outputs:
    """The outputs of the decomposition of a node."""
    ranked(*[v for v in node.inputs if v is not None])
    return DECOMPOSITIONS[node.op.name](b, node)

"""Quantized ops of com.microsoft in standard ones, which other passes and kernels know."""

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
from sardonyx.passes.rule import need, ranked

Made = tuple[Value | None, ...]


def _one(b: Builder, value: Value | None) -> Value | None:
    """A scale or zero point that is one number, known to be so."""
    if value is None or all(d == 1 for d in value.tensor.dims):
        return value
    made: Value = b.Reshape(value, b.ints())
    return made


def _real(b: Builder, x: Value, scale: Value | None, zero: Value | None) -> Value:
    made: Value = b.DequantizeLinear(x, _one(b, scale), _one(b, zero))
    return made


def _bytes(b: Builder, y: Value, scale: Value | None, zero: Value | None, dtype: DType) -> Value:
    asked = dtype.onnx if zero is None else 0
    made: Value = b.QuantizeLinear(y, _one(b, scale), _one(b, zero), output_dtype=asked)
    return made


def _binary(b: Builder, node: Node) -> Made:
    """QLinearAdd and QLinearMul."""
    a, a_scale, a_zero, c, c_scale, c_zero, y_scale, y_zero = (optional(node, i) for i in range(8))
    assert a is not None
    assert c is not None
    op = node.op.name.removeprefix("QLinear")
    y = b.node(op, _real(b, a, a_scale, a_zero), _real(b, c, c_scale, c_zero)).outputs[0]
    return (_bytes(b, y, y_scale, y_zero, a.tensor.dtype),)


def _unary(compute: Callable[[Builder, Node, Value], Value]) -> Callable[[Builder, Node], Made]:
    def lower(b: Builder, node: Node) -> Made:
        x, x_scale, x_zero, y_scale, y_zero = (optional(node, i) for i in range(5))
        assert x is not None
        y = compute(b, node, _real(b, x, x_scale, x_zero))
        return (_bytes(b, y, y_scale, y_zero, x.tensor.dtype),)

    return lower


def _sigmoid(b: Builder, node: Node, x: Value) -> Value:
    made: Value = b.Sigmoid(x)
    return made


def _leaky(b: Builder, node: Node, x: Value) -> Value:
    made: Value = b.LeakyRelu(x, alpha=node.attrs["alpha"])
    return made


def _softmax(b: Builder, node: Node, x: Value) -> Value:
    axis, rank = node.attrs["axis"], x.tensor.rank
    need(rank > 0, "one number has no axis")
    if node.attrs["opset"] >= 13:
        made: Value = b.Softmax(x, axis=axis)
    else:
        rows = b.Softmax(b.Flatten(x, axis=axis % rank), axis=1)
        made = b.Reshape(rows, b.Shape(x), allowzero=1)
    return made


def _turned(b: Builder, x: Value, *, is_last: object) -> Value:
    """Images with their channels last from others, or the other way around."""
    rank = x.tensor.rank
    perm = (0, *range(2, rank), 1) if is_last else (0, rank - 1, *range(1, rank - 1))
    made: Value = b.Transpose(x, perm=perm)
    return made


def _first(b: Builder, x: Value, apply: Callable[[Value], Value], is_last: object) -> Value:
    """Applies an op to images with their channels behind the batch."""
    if not is_last:
        return apply(x)
    return _turned(b, apply(_turned(b, x, is_last=False)), is_last=True)


def _average(b: Builder, node: Node, x: Value) -> Value:
    attrs = {k: v for k, v in node.attrs.items() if k != "channels_last"}
    return _first(b, x, lambda v: b.AveragePool(v, **attrs), node.attrs["channels_last"])


def _global(b: Builder, node: Node, x: Value) -> Value:
    return _first(b, x, lambda v: b.GlobalAveragePool(v), node.attrs["channels_last"])


def _mean(b: Builder, node: Node, x: Value) -> Value:
    axes = node.attrs["axes"] or range(x.tensor.rank)
    made: Value = b.ReduceMean(x, b.ints(*axes), keepdims=node.attrs["keepdims"])
    return made


def _concat(b: Builder, node: Node) -> Made:
    y_scale, y_zero, *rest = (given(node, i) for i in range(len(node.inputs)))
    parts = [_real(b, *rest[i : i + 3]) for i in range(0, len(rest), 3)]
    y = b.Concat(*parts, axis=node.attrs["axis"])
    return (_bytes(b, y, y_scale, y_zero, y_zero.tensor.dtype),)


def _where(b: Builder, node: Node) -> Made:
    condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = (
        given(node, i) for i in range(9)
    )
    z = b.Where(condition, _real(b, x, x_scale, x_zero), _real(b, y, y_scale, y_zero))
    return (_bytes(b, z, z_scale, z_zero, x.tensor.dtype),)


def _conv(b: Builder, node: Node) -> Made:
    x, *rest = node.inputs
    assert x is not None
    attrs = {k: v for k, v in node.attrs.items() if k != "channels_last"}
    singles = [_one(b, v) if i in (0, 1, 5, 6) else v for i, v in enumerate(rest)]
    is_last = node.attrs["channels_last"]
    return (_first(b, x, lambda v: b.QLinearConv(v, *singles, **attrs), is_last),)


def _max_pool(b: Builder, node: Node) -> Made:
    return (_first(b, given(node, 0), lambda v: b.MaxPool(v, **node.attrs), True),)


def _convert(b: Builder, node: Node) -> Made:
    from sardonyx.ops.quantize.convert_contrib import standard

    attrs = standard(node.op, node.attrs["axis"])
    return (b.node(node.op.name, *node.inputs, **attrs).outputs[0],)


def _gemm(b: Builder, node: Node) -> Made:
    a, a_scale, a_zero, w, w_scale, w_zero, c, y_scale, y_zero = (
        optional(node, i) for i in range(9)
    )
    assert a is not None
    attrs, columns = node.attrs, node.outputs[0].tensor.dims[1]
    x_scale = _one(b, a_scale)
    if attrs["alpha"] != 1:
        x_scale = b.Mul(x_scale, attrs["alpha"])
    assert w is not None
    left = b.Transpose(a, perm=(1, 0)) if attrs["transA"] else a
    is_turned = bool(attrs["transB"] and w.is_const)  # constants are turned when they are packed
    right = b.Transpose(w, perm=(1, 0)) if attrs["transB"] and not is_turned else w
    is_row = c is None or (c.tensor.dims[-1:] == (columns,) and c.tensor.dims[:-1] in ((), (1,)))
    if is_row:
        row = c if c is None or c.tensor.rank == 1 else b.Reshape(c, b.ints(-1))
        result = (None, None) if y_zero is None else (_one(b, y_scale), _one(b, y_zero))
        y = b.QMatMul(
            left, right, x_scale, _one(b, a_zero), w_scale, w_zero, row, *result, domain=INTERNAL,
            dtype=node.outputs[0].tensor.dtype.onnx, trans_w=int(is_turned),
        )  # fmt: skip
        return (y,)
    right = b.Transpose(right, perm=(1, 0)) if is_turned else right
    total = b.Add(b.MatMulInteger(left, right, _one(b, a_zero), w_zero), c)
    y = b.Mul(b.Cast(total, to=F32.onnx), b.Mul(x_scale, w_scale))
    return (y if y_zero is None else _bytes(b, y, y_scale, y_zero, y_zero.tensor.dtype),)


def _attention(b: Builder, node: Node) -> Made:
    from sardonyx.ops.attention.projected import Inputs
    from sardonyx.ops.attention.quantized import projected_attrs
    from sardonyx.passes.heads import attend_projected

    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (optional(node, i) for i in range(9))
    assert bias is not None
    need(bias.tensor.dtype is F32, "not in float32")
    whole = b.QMatMul(
        x, w, _one(b, x_scale), _one(b, x_zero), w_scale, w_zero, bias, None, None,
        domain=INTERNAL, dtype=F32.onnx,
    )  # fmt: skip
    inputs = Inputs(x, w, bias, mask, past, None, None)
    has_present = len(node.outputs) > 1 and node.outputs[1].is_used
    return attend_projected(b, inputs, whole, projected_attrs(node.attrs), has_present)


def _rows(b: Builder, table: Value, ids: Value) -> Value:
    """Rows of a table; ids below 0 are no places from its end, and refused like those behind it."""
    size = table.tensor.dims[0]
    need(isinstance(size, int), "a table of any length")
    behind = b.Where(b.Less(ids, 0), b.const(size, I32), ids)
    made: Value = b.Gather(table, behind, axis=0)
    return made


def _embed(b: Builder, node: Node) -> Made:
    ids, segments, words, places, segment_table, gamma, beta, mask, *settings = (
        optional(node, i) for i in range(18)
    )
    assert ids is not None
    assert words is not None
    assert places is not None
    kinds = list(zip(settings[:5], settings[5:], strict=True))
    total = _real(b, _rows(b, words, ids), *kinds[0])
    rows = b.Shape(ids, start=1, end=2)
    total = b.Add(total, _real(b, b.Slice(places, b.ints(0), rows, b.ints(0)), *kinds[1]))
    if segments is not None and segment_table is not None:
        total = b.Add(total, _real(b, _rows(b, segment_table, segments), *kinds[2]))
    vectors = [_real(b, v, *k) for v, k in zip((gamma, beta), kinds[3:], strict=True) if v]
    y = b.LayerNormalization(total, *vectors, axis=-1, epsilon=node.attrs["epsilon"])
    if mask is None:
        count = b.Expand(b.const(0, I32), b.Shape(ids, start=0, end=1))
    else:
        seen = b.Cast(b.Equal(mask, 1), to=I32.onnx)
        count = b.ReduceSum(seen, b.ints(1), keepdims=0)
    return y, count


def _bnb4(b: Builder, node: Node) -> Made:
    """The weights are made once; a product with float32 reads them as any other."""
    from sardonyx.ops.nbits.bnb4 import weight_attrs

    x, q, absmax = (given(node, i) for i in range(3))
    need(q.const is not None and absmax.const is not None, "the weights are not constant")
    assert q.const is not None
    assert absmax.const is not None
    attrs, op = node.attrs, lookup(INTERNAL, "Bnb4Weights")
    assert op is not None
    fact = (F32, (attrs["N"], attrs["K"]))
    weights = constant(Recipe(op, (q.const, absmax.const), weight_attrs(attrs), 0, fact))
    right = b.Transpose(weights, perm=(1, 0)) if attrs["transB"] else weights
    dtype = x.tensor.dtype
    y = b.MatMul(x if dtype is F32 else b.Cast(x, to=F32.onnx), right)
    return (y if dtype is F32 else b.Cast(y, to=dtype.onnx),)


def _lstm(b: Builder, node: Node) -> Made:
    """The input of all steps is multiplied at once, and for both directions."""
    x, w, r, bias, lens, initial_h, initial_c, p, *settings = (optional(node, i) for i in range(12))
    assert w is not None
    assert r is not None
    need(w.is_const and r.is_const, "the weights are not constant")
    shape = w.tensor.static
    need(shape is not None and all(v is not None and v.is_const for v in settings), "scales vary")
    assert shape is not None
    directions, inner, columns = shape
    w_scale, w_zero, r_scale, r_zero = (v.const.read() for v in settings if v and v.const)
    weights = b.Reshape(b.Transpose(w, perm=(1, 0, 2)), b.ints(inner, directions * columns))
    steps, scale, zero = b.DynamicQuantizeLinear(x, outputs=3)
    if bias is not None:
        halves = b.Reshape(bias, b.ints(directions, 2, columns))
        bias = b.Reshape(b.ReduceSum(halves, b.ints(1), keepdims=0), b.ints(-1))
    gates = b.QMatMul(
        steps, weights, scale, zero, b.const(_spread(w_scale, shape)),
        b.const(_spread(w_zero, shape)) if w_zero.any() else None, bias, None, None,
        domain=INTERNAL, dtype=F32.onnx,
    )  # fmt: skip
    made = b.QLSTM(
        gates, r, b.const(r_scale), b.const(r_zero) if r_zero.any() else None, lens, initial_h,
        initial_c, p, domain=INTERNAL, outputs=len(node.outputs), **node.attrs,
    )  # fmt: skip
    return (made,) if len(node.outputs) == 1 else tuple(made)


def _spread(row: Array, shape: tuple[int, ...]) -> Array:
    """One number for each column of all directions."""
    directions, _, columns = shape
    each = row.reshape(directions, -1)
    return np.broadcast_to(each, (directions, columns)).reshape(-1).copy()


LOWERINGS: Final[dict[str, Callable[[Builder, Node], Made]]] = {
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
    "QLinearGlobalAveragePool": _unary(_global),
    "QLinearLeakyRelu": _unary(_leaky),
    "QLinearMul": _binary,
    "QLinearReduceMean": _unary(_mean),
    "QLinearSigmoid": _unary(_sigmoid),
    "QLinearSoftmax": _unary(_softmax),
    "QLinearWhere": _where,
    "QuantizeLinear": _convert,
}


def lowered(b: Builder, node: Node) -> Made:
    """What stands for a node."""
    ranked(*[v for v in node.inputs if v is not None])
    return LOWERINGS[node.op.name](b, node)

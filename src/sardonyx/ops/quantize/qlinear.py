"""QLinear ops of com.microsoft: dequantize, compute in float32, quantize again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import BOOL, F32, I8, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, contrib_op, optional, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.builder import Builder
from sardonyx.ops.conv.standard import CONV
from sardonyx.ops.decomposition import Outputs, need
from sardonyx.ops.elementwise.arithmetic import sigmoid
from sardonyx.ops.inference import axes_of, axis_of, broadcast_shapes
from sardonyx.ops.move.standard import concat
from sardonyx.ops.pooling.standard import average_pool
from sardonyx.ops.quantize.convert import to_quantized
from sardonyx.ops.quantize.matmul_conv import (
    BYTES,
    FLOAT,
    INT,
    centred,
    check_single,
    infer_qlinear_conv,
    per_column,
    run_qlinear_conv,
)
from sardonyx.ops.quantize.qdq import dequantize_node, in_nchw, quantize_node, scalar
from sardonyx.ops.softmax.standard import softmax

_TYPES: Final = {"T": BYTES, "F": FLOAT}
_UNARY: Final = "X:T X_scale:F X_zero_point:T? Y_scale:F Y_zero_point:T?"


def dequantized(x: Array, scale: Array, zero: Array | None) -> Any:
    """Return (x - zero point) * scale as float32."""
    return centred(x, per_column(zero), np.float32) * scale.reshape(())


def requantized(y: Array, scale: Array, zero: Array | None, dtype: Any) -> Array:
    """Quantize y to an 8-bit numpy type."""
    quotient = np.asarray(y / scale.reshape(()), np.float32)
    zeros = [] if zero is None else [zero.reshape(())]
    return to_quantized(quotient, zeros, U8 if dtype == np.uint8 else I8)


def _check_params(g: Scope, op: Op, facts: Sequence[Fact | None]) -> None:
    """Check that the scales and zero points of an op are one number each."""
    names = (slot.name for slot in op.inputs)
    # Parameters are named <operand>_scale and <operand>_zero_point.
    params = {n: f for n, f in zip(names, facts, strict=True) if "_" in n}
    check_single(g, **params)


def _binary(name: str, compute: Callable[[Any, Any], Any]) -> Op:
    op = contrib_op(
        name,
        "A:T A_scale:F A_zero_point:T? B:T B_scale:F B_zero_point:T? C_scale:F C_zero_point:T?",
        "C:T",
        types=_TYPES,
    )

    def infer(g: Scope, *facts: Any) -> Fact:
        _check_params(g, op, facts)
        a, b = facts[0], facts[3]
        return Fact(a.dtype, broadcast_shapes(g, a.dims, b.dims))

    def reference(*arrays: Any) -> Array:
        a, a_scale, a_zero, b, b_scale, b_zero, c_scale, c_zero = arrays
        with np.errstate(all="ignore"):
            y = compute(dequantized(a, a_scale, a_zero), dequantized(b, b_scale, b_zero))
            return requantized(y, c_scale, c_zero, a.dtype)

    op.infer(infer)
    op.reference(reference)
    return op


def _unary(
    name: str,
    compute: Callable[..., Any],
    shape: Callable[..., Shape],
    attrs: Mapping[str, Any] | None = None,
    inputs: str = _UNARY,
) -> Op:
    """Declare an op of one tensor by its function of real numbers and its shape rule."""
    op = contrib_op(name, inputs, "Y:T", attrs=attrs, types=_TYPES)

    def infer(g: Scope, x: Fact, *rest: Fact | None, **attrs_of_node: Any) -> Fact:
        _check_params(g, op, (x, *rest))
        return Fact(x.dtype, shape(g, x, attrs_of_node))

    def reference(*arrays: Any, **attrs_of_node: Any) -> Array:
        x, x_scale, x_zero, y_scale, y_zero = arrays
        with np.errstate(all="ignore"):
            return requantized(
                compute(dequantized(x, x_scale, x_zero), **attrs_of_node), y_scale, y_zero, x.dtype
            )

    op.infer(infer)
    op.reference(reference)
    return op


def _same(g: Scope, x: Fact, attrs: Mapping[str, Any]) -> Shape:
    return x.dims


def _leaky(x: Array, *, alpha: float) -> Any:
    return np.where(x < 0, np.float32(alpha) * x, x)


def _softmax_shape(g: Scope, x: Fact, attrs: Mapping[str, Any]) -> Shape:
    axis_of(attrs["axis"], x.rank)
    return x.dims


def _softmax(x: Array, *, axis: int, opset: int) -> Any:
    """Before opset 13 softmax is over all axes from `axis` on, since then over that axis alone."""
    if opset >= 13 or not x.ndim:
        return softmax(x, axis=axis) if x.ndim else np.ones_like(x)
    at = axis_of(axis, x.ndim)
    rows = int(np.prod(x.shape[:at], dtype=np.int64))
    columns = int(np.prod(x.shape[at:], dtype=np.int64))
    return softmax(x.reshape(rows, columns), axis=1).reshape(x.shape)


POOL: Final = {
    "auto_pad": b"NOTSET",
    "ceil_mode": 0,
    "channels_last": 0,
    "count_include_pad": 0,
    "kernel_shape": required("ints"),
    "pads": optional("ints"),
    "strides": optional("ints"),
}


def as_channels_first(x: Fact, is_last: object) -> Fact:
    """Return the fact of an NHWC image (`is_last`) or NCHW image as NCHW."""
    if x.rank < 3:
        raise InvalidGraph(f"images must have 3 dims or more, got {x}")
    return x.shaped((x.dims[0], x.dims[-1], *x.dims[1:-1])) if is_last else x


def _pool_shape(g: Scope, x: Fact, attrs: Mapping[str, Any]) -> Shape:
    rule = average_pool.infer_rule
    assert rule is not None
    result: Shape = rule(
        g, as_channels_first(x, attrs["channels_last"]).with_dtype(F32), **standard_pool(attrs)
    ).dims
    return (result[0], *result[2:], result[1]) if attrs["channels_last"] else result


def standard_pool(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the ONNX AveragePool."""
    return {"dilations": None, **{k: v for k, v in attrs.items() if k != "channels_last"}}


def _pool(x: Array, **attrs: Any) -> Any:
    is_last = attrs["channels_last"]
    (y,) = average_pool.run((np.moveaxis(x, -1, 1) if is_last else x,), standard_pool(attrs))
    return np.moveaxis(y, 1, -1) if is_last else y


def _spatial_axes(rank: int, is_last: object) -> tuple[int, ...]:
    return tuple(range(1, rank - 1) if is_last else range(2, rank))


def _global_shape(g: Scope, x: Fact, attrs: Mapping[str, Any]) -> Shape:
    as_channels_first(x, attrs["channels_last"])
    reduced = _spatial_axes(x.rank, attrs["channels_last"])
    return tuple(1 if i in reduced else d for i, d in enumerate(x.dims))


def _global(x: Array, *, channels_last: int) -> Any:
    return x.mean(axis=_spatial_axes(x.ndim, channels_last), keepdims=True, dtype=np.float64)


def _mean_shape(g: Scope, x: Fact, attrs: Mapping[str, Any]) -> Shape:
    reduced = axes_of(attrs["axes"], x.rank) or tuple(range(x.rank))
    if attrs["keepdims"]:
        return tuple(1 if i in reduced else d for i, d in enumerate(x.dims))
    return tuple(d for i, d in enumerate(x.dims) if i not in reduced)


def _mean(x: Array, *, axes: tuple[int, ...], keepdims: int) -> Any:
    return x.mean(axis=tuple(axes) or None, keepdims=bool(keepdims), dtype=np.float64)


qlinear_concat: Final = contrib_op(
    "QLinearConcat",
    "Y_scale:F Y_zero_point:T inputs:V*",
    "Y:T",
    attrs={"axis": required("int")},
    types={**_TYPES, "V": BYTES | FLOAT},
)


def concat_inputs(inputs: Any) -> list[tuple[Any, Any, Any]]:
    """Return (bytes, scale, zero point) for each input of a QLinearConcat."""
    if not inputs or len(inputs) % 3:
        raise InvalidGraph(
            f"QLinearConcat has {len(inputs)} inputs after the output's scale and zero point, "
            "and each tensor needs three: data, scale and zero point"
        )
    return [tuple(inputs[i : i + 3]) for i in range(0, len(inputs), 3)]


@qlinear_concat.infer
def _(g: Scope, y_scale: Fact, y_zero: Fact, *inputs: Fact, axis: int) -> Fact:
    check_single(g, Y_scale=y_scale, Y_zero_point=y_zero)
    rule = concat.infer_rule
    assert rule is not None
    parts = concat_inputs(inputs)
    for x, scale, zero in parts:
        if x.dtype is not y_zero.dtype or zero.dtype is not y_zero.dtype or scale.dtype is not F32:
            raise InvalidGraph(
                f"an input to concatenate as {y_zero.dtype} is {x} with scale {scale} "
                f"and zero point {zero}"
            )
        check_single(g, scale=scale, zero_point=zero)
    joined: Fact = rule(g, *(x for x, _, _ in parts), axis=axis)
    return joined


@qlinear_concat.reference
def _(y_scale: Array, y_zero: Array, *inputs: Array, axis: int) -> Array:
    with np.errstate(all="ignore"):
        parts = [dequantized(*p) for p in concat_inputs(inputs)]
        return requantized(np.concatenate(parts, axis), y_scale, y_zero, y_zero.dtype)


where: Final = contrib_op(
    "QLinearWhere",
    "condition:B X:T x_scale:F x_zero_point:T Y:T y_scale:F y_zero_point:T z_scale:F "
    "z_zero_point:T",
    "Z:T",
    types={**_TYPES, "B": frozenset((BOOL,))},
)


@where.infer
def _(g: Scope, *facts: Fact) -> Fact:
    _check_params(g, where, facts)
    condition, x, y = facts[0], facts[1], facts[4]
    return Fact(x.dtype, broadcast_shapes(g, condition.dims, x.dims, y.dims))


@where.reference
def _(*arrays: Array) -> Array:
    condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = arrays
    with np.errstate(all="ignore"):
        operands = dequantized(x, x_scale, x_zero), dequantized(y, y_scale, y_zero)
        return requantized(np.where(condition, *operands), z_scale, z_zero, x.dtype)


conv: Final = contrib_op(
    "QLinearConv",
    "x:T1 x_scale:F x_zero_point:T1 w:T2 w_scale:F w_zero_point:T2 y_scale:F y_zero_point:T3 B:T4?",
    "y:T3",
    attrs={**CONV, "channels_last": 0},
    types={"T1": BYTES, "T2": BYTES, "T3": BYTES, "T4": INT, "F": FLOAT},
)


@conv.infer
def _(g: Scope, x: Fact, *rest: Fact | None, channels_last: int, **attrs: Any) -> Any:
    y = infer_qlinear_conv(g, as_channels_first(x, channels_last), *rest, **attrs)
    return y.shaped((y.dims[0], *y.dims[2:], y.dims[1])) if channels_last else y


@conv.reference
def _(x: Array, *rest: Array | None, channels_last: int, **attrs: Any) -> Any:
    if not channels_last:
        return run_qlinear_conv(x, *rest, **attrs)
    return np.moveaxis(run_qlinear_conv(np.moveaxis(x, -1, 1), *rest, **attrs), 1, -1)


@conv.decompose
def _(b: Builder, node: Node) -> Outputs:
    """QLinearConv of com.microsoft: the standard op, in either layout."""
    x, rest = input_of(node, 0), node.inputs[1:]
    attrs = {k: v for k, v in node.attrs.items() if k != "channels_last"}
    # Scales and zero points of activations; those of the weights may be per channel.
    singles = [scalar(b, v) if i in (0, 1, 5, 6) else v for i, v in enumerate(rest)]
    is_last = node.attrs["channels_last"]
    return (in_nchw(b, x, lambda v: b.QLinearConv(v, *singles, **attrs), is_last),)


def _decompose_binary(b: Builder, node: Node) -> Outputs:
    """QLinearAdd and QLinearMul."""
    a_scale, a_zero, c_scale, c_zero, y_scale, y_zero = (
        optional_input(node, i) for i in (1, 2, 4, 5, 6, 7)
    )
    a, c = input_of(node, 0), input_of(node, 3)
    op = node.op.name.removeprefix("QLinear")
    operands = dequantize_node(b, a, a_scale, a_zero), dequantize_node(b, c, c_scale, c_zero)
    y = b.node(op, *operands).outputs[0]
    return (quantize_node(b, y, y_scale, y_zero, a.tensor.dtype),)


def _unary_decomposition(
    compute: Callable[[Builder, Node, Value], Value],
) -> Callable[[Builder, Node], Outputs]:
    """The decomposition of an op with one quantized input, from its float computation."""

    def lower(b: Builder, node: Node) -> Outputs:
        x = input_of(node, 0)
        x_scale, x_zero, y_scale, y_zero = (optional_input(node, i) for i in range(1, 5))
        y = compute(b, node, dequantize_node(b, x, x_scale, x_zero))
        return (quantize_node(b, y, y_scale, y_zero, x.tensor.dtype),)

    return lower


def _softmax_nodes(b: Builder, node: Node, x: Value) -> Value:
    """QLinearSoftmax."""
    axis, rank = node.attrs["axis"], x.tensor.rank
    need(rank > 0, "one number has no axis")
    # Before opset 13 Softmax flattened its input to a matrix at the axis.
    if node.attrs["opset"] >= 13:
        return b.Softmax(x, axis=axis)
    rows = b.Softmax(b.Flatten(x, axis=axis % rank), axis=1)
    return b.Reshape(rows, b.Shape(x), allowzero=1)


def _decompose_average(b: Builder, node: Node) -> Outputs:
    """QLinearAveragePool and QLinearGlobalAveragePool."""
    x = input_of(node, 0)
    x_scale, x_zero, y_scale, y_zero = (optional_input(node, i) for i in range(1, 5))
    attrs = {k: v for k, v in node.attrs.items() if k != "channels_last"}
    is_last = node.attrs["channels_last"]

    def quantized(image: Value, pool: Callable[[Value], Value]) -> Value:
        y = pool(dequantize_node(b, image, x_scale, x_zero))
        return quantize_node(b, y, y_scale, y_zero, x.tensor.dtype)

    if node.op.name == "QLinearGlobalAveragePool":
        axes = b.ints(*_spatial_axes(x.tensor.rank, is_last))
        # Not GlobalAveragePool: the nodes made here are not decomposed again.
        return (quantized(x, lambda y: b.ReduceMean(y, axes)),)
    # Bytes are transposed, not floats: the three nodes between stay one pattern.
    windows = partial(quantized, pool=lambda y: b.AveragePool(y, **attrs))
    return (in_nchw(b, x, windows, is_last),)


def _mean_nodes(b: Builder, node: Node, x: Value) -> Value:
    """QLinearReduceMean."""
    # No axes: all of them.
    axes = node.attrs["axes"] or range(x.tensor.rank)
    return b.ReduceMean(x, b.ints(*axes), keepdims=node.attrs["keepdims"])


@qlinear_concat.decompose
def _(b: Builder, node: Node) -> Outputs:
    """QLinearConcat."""
    # The inputs after these are triples of tensor, scale and zero point.
    y_scale, y_zero, *rest = (input_of(node, i) for i in range(len(node.inputs)))
    parts = [dequantize_node(b, *rest[i : i + 3]) for i in range(0, len(rest), 3)]
    y = b.Concat(*parts, axis=node.attrs["axis"])
    return (quantize_node(b, y, y_scale, y_zero, y_zero.tensor.dtype),)


@where.decompose
def _(b: Builder, node: Node) -> Outputs:
    """QLinearWhere."""
    condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = (
        input_of(node, i) for i in range(9)
    )
    operands = dequantize_node(b, x, x_scale, x_zero), dequantize_node(b, y, y_scale, y_zero)
    z = b.Where(condition, *operands)
    return (quantize_node(b, z, z_scale, z_zero, x.tensor.dtype),)


OPS: Final = (
    _binary("QLinearAdd", np.add),
    _binary("QLinearMul", np.multiply),
    _unary("QLinearSigmoid", sigmoid, _same),
    _unary("QLinearLeakyRelu", _leaky, _same, {"alpha": float(np.float32(0.01))}),
    _unary(
        "QLinearSoftmax",
        _softmax,
        _softmax_shape,
        {"axis": -1, "opset": required("int")},
        "X:T X_scale:F x_zero_point:T? y_scale:F y_zero_point:T",
    ),
    _unary(
        "QLinearAveragePool",
        _pool,
        _pool_shape,
        POOL,
        "X:T x_scale:F x_zero_point:T? y_scale:F y_zero_point:T?",
    ),
    _unary(
        "QLinearGlobalAveragePool",
        _global,
        _global_shape,
        {"channels_last": 0},
        "X:T x_scale:F x_zero_point:T y_scale:F y_zero_point:T",
    ),
    _unary(
        "QLinearReduceMean",
        _mean,
        _mean_shape,
        {"axes": required("ints"), "keepdims": required("int")},
        "data:T data_scale:F data_zero_point:T? reduced_scale:F reduced_zero_point:T?",
    ),
    qlinear_concat,
    where,
    conv,
)

_DECOMPOSITIONS: Final = {
    "QLinearAdd": _decompose_binary,
    "QLinearMul": _decompose_binary,
    "QLinearSigmoid": _unary_decomposition(lambda b, node, x: b.Sigmoid(x)),
    "QLinearLeakyRelu": _unary_decomposition(
        lambda b, node, x: b.LeakyRelu(x, alpha=node.attrs["alpha"])
    ),
    "QLinearSoftmax": _unary_decomposition(_softmax_nodes),
    "QLinearAveragePool": _decompose_average,
    "QLinearGlobalAveragePool": _decompose_average,
    "QLinearReduceMean": _unary_decomposition(_mean_nodes),
}
for _op in OPS:
    if _op.name in _DECOMPOSITIONS:
        _op.decompose(_DECOMPOSITIONS[_op.name])

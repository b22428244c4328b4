"""Lowering of matrix products: every kind of them becomes one op, with what surrounds it."""

from __future__ import annotations

import math
from typing import Any, Final

from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import Code, Instruction
from sardonyx.ops.matmul.internal import TYPES
from sardonyx.passes.pattern import P, hole, scalar
from sardonyx.passes.rule import need, ranked, rule
from sardonyx.passes.transpose import order_of

a, b_, x, factor = hole("left"), hole("right"), hole("x"), hole("factor")
SUMMED_WIDE: Final = (F32, F16, BF16)  # types whose products end in an epilogue, in f32


def _product(b: Builder, left: Value, right: Value, *operands: Value, **attrs: Any) -> Value:
    made: Value = b.MatMul(left, right, *operands, domain=INTERNAL, **attrs)
    return made


@rule(P.MatMul(a, b_))
def matmul(b: Builder, left: Value, right: Value) -> Value:
    """A vector is a matrix of one row or one column."""
    ranked(left, right)
    need(left.tensor.dtype in TYPES, "no product of this type")
    rows, columns = left.tensor.rank == 1, right.tensor.rank == 1
    if not rows and not columns:
        return _product(b, left, right)
    y = _product(
        b,
        b.Unsqueeze(left, b.ints(0)) if rows else left,
        b.Unsqueeze(right, b.ints(1)) if columns else right,
    )
    made: Value = b.Squeeze(y, b.ints(*([-2] if rows else []), *([-1] if columns else [])))
    return made


@rule(P.FusedMatMul(a, b_, domain=MICROSOFT).named("node"))
def fused_matmul(b: Builder, left: Value, right: Value, node: Node) -> Value:
    """Batches that lie behind the first axis of the matrices are turned first."""
    ranked(left, right)
    attrs = node.attrs
    left, right = (
        b.Transpose(v, perm=(*range(1, v.tensor.rank - 1), 0, v.tensor.rank - 1)) if turns else v
        for v, turns in ((left, attrs["transBatchA"]), (right, attrs["transBatchB"]))
    )
    if left.tensor.rank == 1 or right.tensor.rank == 1:
        return _vectors(b, left, right, node)
    return _product(
        b,
        left,
        right,
        trans_a=attrs["transA"],
        trans_b=attrs["transB"],
        alpha=attrs["alpha"],
    )


def _vectors(b: Builder, left: Value, right: Value, node: Node) -> Value:
    """A product with a vector, which is never turned."""
    attrs = node.attrs
    need(left.tensor.rank == 1 or not attrs["transA"], "a matrix that is turned")
    need(right.tensor.rank == 1 or not attrs["transB"], "a matrix that is turned")
    made: Value = b.MatMul(left, right)
    return made if attrs["alpha"] == 1 else b.Mul(made, b.const(attrs["alpha"], made.tensor.dtype))


@rule(P.Gemm(a, b_, rest=True).named("node"))
def gemm(b: Builder, left: Value, right: Value, node: Node) -> Value:
    """What is added is an epilogue, times beta if that is not 1."""
    attrs, dtype = node.attrs, left.tensor.dtype
    alpha, beta = attrs["alpha"], attrs["beta"]
    added = node.inputs[2] if len(node.inputs) > 2 and beta else None
    need(dtype.is_float or (alpha == 1 and beta == 1), "rounds numbers to integers")
    given: dict[str, Any] = {"trans_a": attrs["transA"], "trans_b": attrs["transB"], "alpha": alpha}
    if added is not None and beta != 1:
        added = b.Mul(added, b.const(beta, dtype))
    if added is None:
        return _product(b, left, right, **given)
    if dtype not in SUMMED_WIDE:
        made: Value = b.Add(_product(b, left, right, **given), added)
        return made
    code: Code = (Instruction((ONNX, "Add"), (0, 1), dtype),)
    return _product(b, left, right, added, code=code, **given)


def _turns(node: Node) -> None:
    """Says no unless a Transpose swaps the last two axes and no other."""
    order = order_of(node)
    n = len(order)
    need(n > 1 and order == (*range(n - 2), n - 1, n - 2), "moves other axes")


def _operands(node: Node) -> list[Value]:
    """What the epilogue of a product reads."""
    return [v for v in node.inputs[2:] if v is not None]


_PRODUCT: Final[dict[str, Any]] = {"domain": INTERNAL, "rest": True}


@rule(P.MatMul(P.Transpose(x).named("turn"), b_, **_PRODUCT).named("node"))
def turned_left(b: Builder, x: Value, right: Value, turn: Node, node: Node) -> Value:
    _turns(turn)
    attrs = {**node.attrs, "trans_a": 1 - node.attrs["trans_a"]}
    return _product(b, x, right, *_operands(node), like=node.outputs[0], **attrs)


@rule(P.MatMul(a, P.Transpose(x).named("turn"), **_PRODUCT).named("node"))
def turned_right(b: Builder, left: Value, x: Value, turn: Node, node: Node) -> Value:
    _turns(turn)
    attrs = {**node.attrs, "trans_b": 1 - node.attrs["trans_b"]}
    return _product(b, left, x, *_operands(node), like=node.outputs[0], **attrs)


_MADE: Final = P.MatMul(a, b_, domain=INTERNAL).named("node")


@rule(P.Mul(_MADE, factor).named("scale"), P.Div(_MADE, factor).named("scale"))
def scaled(b: Builder, left: Value, right: Value, node: Node, factor: Value, scale: Node) -> Value:
    """One number that all sums are multiplied with, or divided by if that is as exact."""
    number = scalar(factor)
    need(number and math.isfinite(number), "not one number")
    assert number is not None
    need(factor.tensor.rank <= node.outputs[0].tensor.rank, "adds axes")
    need(left.tensor.dtype in SUMMED_WIDE and node.attrs["code"] is None, "not only scaled")
    if scale.op.name == "Div":
        need(abs(math.frexp(number)[0]) == 0.5, "not a power of two")
        number = 1 / number
    need(node.attrs["alpha"] == 1, "scaled twice")
    return _product(b, left, right, like=node.outputs[0], **{**node.attrs, "alpha": number})


RULES: Final[tuple[Any, ...]] = (
    *matmul,
    *fused_matmul,
    *gemm,
    *turned_left,
    *turned_right,
    *scaled,
)

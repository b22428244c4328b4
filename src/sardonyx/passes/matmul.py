"""Matmul lowering: MatMul, FusedMatMul and Gemm become one internal MatMul op.

It has flags for transposed operands, a factor (alpha) and an epilogue, so Transposes and scales
around it are folded into its attributes.
"""

from __future__ import annotations

import math
from typing import Any, Final

from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.graph import Graph, Node, Value, optional_input
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import Code, Instruction
from sardonyx.ops.matmul.standard import TYPES
from sardonyx.passes.algebra import permutation_of
from sardonyx.passes.rule import P, hole, need, present, ranked, rule, scalar

a, b_, x, factor = hole("left"), hole("right"), hole("x"), hole("factor")
# Types with float32 accumulators, to which an epilogue is applied before they are rounded.
FLOAT32_ACCUMULATED: Final = (F32, F16, BF16)


def _matmul(b: Builder, left: Value, right: Value, *operands: Value, **attrs: Any) -> Value:
    """The output of a new internal MatMul."""
    return b.MatMul(left, right, *operands, domain=INTERNAL, **attrs)


@rule(P.MatMul(a, b_))
def matmul(b: Builder, left: Value, right: Value) -> Value:
    """Lower MatMul; a vector becomes a matrix with one row or one column."""
    ranked(left, right)
    need(left.tensor.dtype in TYPES, "no matmul kernel for this type")
    rows, columns = left.tensor.rank == 1, right.tensor.rank == 1
    if not rows and not columns:
        return _matmul(b, left, right)
    # The kernels multiply matrices only.
    left = b.Unsqueeze(left, b.ints(0)) if rows else left
    right = b.Unsqueeze(right, b.ints(1)) if columns else right
    added = [axis for axis, is_added in ((-2, rows), (-1, columns)) if is_added]
    return b.Squeeze(_matmul(b, left, right), b.ints(*added))


@rule(P.FusedMatMul(a, b_, domain=MICROSOFT).named("node"))
def fused_matmul(b: Builder, left: Value, right: Value, node: Node) -> Value:
    """Lower FusedMatMul; operands with the batch after their first axis are transposed."""
    ranked(left, right)
    attrs = node.attrs
    left, right = (
        b.Transpose(v, perm=(*range(1, v.tensor.rank - 1), 0, v.tensor.rank - 1)) if is_inner else v
        for v, is_inner in ((left, attrs["transBatchA"]), (right, attrs["transBatchB"]))
    )
    trans_a, trans_b, alpha = attrs["transA"], attrs["transB"], attrs["alpha"]
    if left.tensor.rank > 1 and right.tensor.rank > 1:
        return _matmul(b, left, right, trans_a=trans_a, trans_b=trans_b, alpha=alpha)
    # The transpose flags do not apply to vectors.
    need(left.tensor.rank == 1 or not trans_a, "the matrix is transposed")
    need(right.tensor.rank == 1 or not trans_b, "the matrix is transposed")
    y = b.MatMul(left, right)
    return y if alpha == 1 else b.Mul(y, alpha)


@rule(P.Gemm(a, b_, rest=True).named("node"))
def gemm(b: Builder, left: Value, right: Value, node: Node) -> Value:
    """Lower Gemm: C becomes an operand of an Add in the epilogue."""
    attrs, dtype = node.attrs, left.tensor.dtype
    alpha, beta = attrs["alpha"], attrs["beta"]
    added = optional_input(node, 2) if beta else None
    # alpha and beta are floats: of integers they would round every product.
    need(dtype.is_float or (alpha == 1 and beta == 1), "rounds numbers to integers")
    flags: dict[str, Any] = {"trans_a": attrs["transA"], "trans_b": attrs["transB"], "alpha": alpha}
    if added is None:
        return _matmul(b, left, right, **flags)
    if beta != 1:  # the builder folds this where C is constant
        added = b.Mul(added, b.const(beta, dtype))
    if dtype not in FLOAT32_ACCUMULATED:
        return b.Add(_matmul(b, left, right, **flags), added)
    code: Code = (Instruction((ONNX, "Add"), (0, 1), dtype),)
    return _matmul(b, left, right, added, code=code, **flags)


def _with_transpose(
    b: Builder, transpose: Node, node: Node, operands: tuple[Value, Value], flag: str
) -> Value:
    """The matmul of these operands, with the Transpose of one of them in its flag."""
    order = permutation_of(transpose)
    n = len(order)
    need(n > 1 and order == (*range(n - 2), n - 1, n - 2), "it permutes other axes")
    # Two transposes cancel.
    attrs = {**node.attrs, flag: 1 - node.attrs[flag]}
    epilogue = [v for v in node.inputs[2:] if v is not None]
    return _matmul(b, *operands, *epilogue, like=node.outputs[0], **attrs)


_TRANSPOSED: Final = P.Transpose(x).named("transpose")


@rule(P.MatMul(_TRANSPOSED, b_, domain=INTERNAL, rest=True).named("node"), aliases="turned_left")
def transposed_left(b: Builder, x: Value, right: Value, transpose: Node, node: Node) -> Value:
    """Fold a Transpose of the left operand into trans_a."""
    return _with_transpose(b, transpose, node, (x, right), "trans_a")


@rule(P.MatMul(a, _TRANSPOSED, domain=INTERNAL, rest=True).named("node"), aliases="turned_right")
def transposed_right(b: Builder, left: Value, x: Value, transpose: Node, node: Node) -> Value:
    """Fold a Transpose of the right operand into trans_b."""
    return _with_transpose(b, transpose, node, (left, x), "trans_b")


# Without an epilogue: no further inputs.
_PLAIN: Final = P.MatMul(a, b_, domain=INTERNAL).named("node")


@rule(P.Mul(_PLAIN, factor).named("scale"), P.Div(_PLAIN, factor).named("scale"), aliases="scaled")
def scaled_matmul(
    b: Builder, left: Value, right: Value, node: Node, factor: Value, scale: Node
) -> Value:
    """Fold multiplication or division by one number into alpha."""
    number = present(scalar(factor), "the factor is not one number")
    need(number and math.isfinite(number), "the factor is 0 or not finite")
    need(factor.tensor.rank <= node.outputs[0].tensor.rank, "adds axes")
    # alpha is applied before the epilogue, so there must be none yet.
    is_plain = left.tensor.dtype in FLOAT32_ACCUMULATED and node.attrs["code"] is None
    need(is_plain, "it has an epilogue, or no float32 accumulators")
    if scale.op.name == "Div":
        # 1 / number is exact only for powers of two; else division and multiplication differ.
        need(abs(math.frexp(number)[0]) == 0.5, "not a power of two")
        number = 1 / number
    need(node.attrs["alpha"] == 1, "it is scaled already")
    return _matmul(b, left, right, like=node.outputs[0], **{**node.attrs, "alpha": number})


# Conv and Attention compute matmuls too.
_BF16_OPS: Final = frozenset((INTERNAL, name) for name in ("Attention", "Conv", "MatMul"))


def mark_bf16(graph: Graph) -> None:
    """Set the attribute `bf16` of matmuls, in a graph and its bodies.

    A kernel with bfloat16 instructions then rounds both operands; accumulators stay float32.
    """
    for node in graph.all_nodes():
        x = node.inputs[0] if node.op.key in _BF16_OPS else None
        # float64 and integers are multiplied exactly.
        if x is not None and x.tensor.dtype in FLOAT32_ACCUMULATED:
            node.attrs = {**node.attrs, "bf16": 1}


RULES: Final[tuple[Any, ...]] = (
    *matmul, *fused_matmul, *gemm, *transposed_left, *transposed_right, *scaled_matmul,
)  # fmt: skip

"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sardonyx.dynamo.aten_builder import AtenBuilder
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import FLOATS, I8, I16, I32, U8, DType
from sardonyx.graph.graph import Value

# Integer types without matmul kernels. Sums of products modulo 2^32 are exact modulo 2^16 and 2^8.
_SMALL_INTEGERS: Final[tuple[DType, ...]] = (I8, I16, U8)


def matmul(b: AtenBuilder, x: Value, y: Value) -> Value:
    """Return the matrix product in the type of its operands."""
    dtype = x.tensor.dtype
    if dtype in _SMALL_INTEGERS:
        return b.cast(b.MatMul(b.cast(x, I32), b.cast(y, I32)), dtype)
    return b.MatMul(x, y)


@lowers(
    "mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default", "vdot.default"
)  # fmt: skip
def _(b: AtenBuilder, x: Value, y: Value) -> Value:
    return matmul(b, x, y)


@lowers("linear.default")
def _(b: AtenBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    transposed = b.Transpose(weight, perm=(1, 0)) if weight.tensor.rank == 2 else weight
    y = matmul(b, x, transposed)
    return y if bias is None else b.Add(y, bias)


def _scaled_sum(b: AtenBuilder, c: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """Return beta * c + alpha * product; beta 0 ignores c, NaN included."""
    if alpha != 1:
        product = b.Mul(product, b.operand(alpha, b.out_type))
    if beta == 0:
        # c still broadcasts the result.
        return b.Expand(product, b.sizes(b.out.shape))
    return b.Add(product, c if beta == 1 else b.Mul(c, b.operand(beta, b.out_type)))


@lowers("addmm.default")
def _(b: AtenBuilder, c: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    if x.tensor.dtype in FLOATS and (beta, alpha) != (1, 1) and isinstance(alpha, (int, float)):
        operand = None if beta == 0 else c
        return b.Gemm(x, y, operand, alpha=float(alpha), beta=float(beta))
    return _scaled_sum(b, c, matmul(b, x, y), beta, alpha)


def _summed_bmm(b: AtenBuilder, x: Value, y: Value) -> Value:
    """Return the sum of a batch of products, as one product over (batch, k): rounded once."""
    rows, columns = x.tensor.dims[1], y.tensor.dims[2]
    if not (isinstance(rows, int) and isinstance(columns, int)):
        return b.ReduceSum(matmul(b, x, y), b.ints(0), keepdims=0)
    depth = b.Slice(b.Shape(y), b.ints(0), b.ints(2))
    depth = b.ReduceProd(depth, keepdims=1)
    left = b.Reshape(b.Transpose(x, perm=(1, 0, 2)), b.Concat(b.ints(rows), depth, axis=0))
    return matmul(b, left, b.Reshape(y, b.Concat(depth, b.ints(columns), axis=0)))


def _outer(b: AtenBuilder, x: Value, y: Value) -> Value:
    (x, y) = b.like_out(x, y)
    return b.Mul(b.Unsqueeze(x, b.ints(1)), b.Unsqueeze(y, b.ints(0)))


def _register(overload: str, product: Callable[[AtenBuilder, Value, Value], Value]) -> None:
    @lowers(overload)
    def _(b: AtenBuilder, c: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
        (c,) = b.like_out(c)
        return _scaled_sum(b, c, product(b, x, y), beta, alpha)


_register("addmv.default", matmul)
_register("addr.default", _outer)
_register("baddbmm.default", matmul)
_register("addbmm.default", _summed_bmm)


@lowers("_int_mm.default")
def _(b: AtenBuilder, x: Value, y: Value) -> Value:
    return b.MatMul(b.cast(x, I32), b.cast(y, I32))


@lowers("_trilinear.default")
def _(
    b: AtenBuilder,
    x: Value,
    y: Value,
    z: Value,
    expand1: Any,
    expand2: Any,
    expand3: Any,
    sumdim: Any,
    unroll_dim: int = 1,
) -> Value:
    """Sum x y z over axes, after axes of size 1 are inserted: an einsum of three operands."""
    operands = (x, y, z)
    expanded = (expand1, expand2, expand3)
    rank = x.tensor.rank + len(expand1)
    letters = "abcdefghijklmnopqrstuvwxyz"[:rank]
    summed = {d % rank for d in sumdim}
    terms = [
        "".join(c for i, c in enumerate(letters) if i not in {d % rank for d in dims})
        for dims in expanded
    ]
    result = "".join(c for i, c in enumerate(letters) if i not in summed)
    # A contraction of two operands first: what is summed and absent from the third goes.
    kept = "".join(c for c in letters if c in result + terms[2] and c in terms[0] + terms[1])
    first = b.Einsum(operands[0], operands[1], equation=f"{terms[0]},{terms[1]}->{kept}".encode())
    return b.Einsum(first, operands[2], equation=f"{kept},{terms[2]}->{result}".encode())

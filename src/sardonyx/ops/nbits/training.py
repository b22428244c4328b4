"""The gradient of MatMulNBits by its activations: a product with the weights as they are stored."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.const import ArrayConst, reshaped
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dim import product
from sardonyx.graph.dtype import BOOL, F64, I64, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import GRADIENT, MICROSOFT, Op, required
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import known_size
from sardonyx.ops.matmul.standard import matmul
from sardonyx.ops.nbits.blockwise import check_weights
from sardonyx.ops.nbits.internal import REALS, dequantized_weights

# Elements of the weights that the decomposition dequantizes at a time: 2 MB of float32 stay in the
# L2 cache until the product reads them.
ELEMENTS_AT_ONCE: Final = 1 << 19

# dx [..., K] = dy [..., N] W, with the weights W [N, K] of a MatMulNBits without g_idx.
matmul_gradient: Final = Op(
    "MatMulNBitsGradient",
    1,
    "dy:T1 B:T2 scales:T1 zero_points:T3?",
    "dx:T1",
    attrs={name: required("int") for name in ("K", "N", "bits", "block_size")},
    types={"T1": REALS, "T2": frozenset((U8,)), "T3": REALS | {U8}},
    domain=GRADIENT,
)


@matmul_gradient.infer
def _(g: Scope, dy: Fact, q: Fact, scales: Fact, zero: Fact | None = None, **attrs: Any) -> Fact:
    check_weights(g, q, scales, zero, attrs)
    if dy.rank < 1:
        raise ShapeError(f"dy must have rows of N = {attrs['N']}, got the scalar {dy}")
    g.equal(dy.dims[-1], attrs["N"], "dy must have as many columns as the weights")
    return dy.shaped((*dy.dims[:-1], attrs["K"]))


@matmul_gradient.reference
def _(dy: Array, q: Array, scales: Array, zero: Array | None = None, **attrs: Any) -> Array:
    layout = {**attrs, "k_major": 0, "signed": 0, "zero_default": 1 << attrs["bits"] - 1}
    with np.errstate(all="ignore"):
        rows = attrs["N"]
        weights = dequantized_weights(q, scales.reshape(rows, -1), _rows_of(zero, rows), layout)
        dx: Array = matmul(wide(dy), weights.T)
        return dx.astype(dy.dtype, copy=False)


def _rows_of(zero: Array | None, n: int) -> Array | None:
    return None if zero is None else zero.reshape(n, -1)


def _has_no_kernel(node: Node) -> bool:
    """Whether the CPU has no kernel: it reads constants in the model's file."""
    zero = optional_input(node, 3)
    stored = [v for v in node.inputs[1:] if v is not None]
    return not all(v.is_const for v in stored) or (zero is not None and zero.tensor.dtype is F64)


@matmul_gradient.decompose(when=_has_no_kernel)
def _(b: Builder, node: Node) -> Value:
    """The product by blocks of rows of the weights, which are dequantized as needed."""
    dy = input_of(node, 0)
    weights = _RowReader(b, node)
    n, k = node.attrs["N"], node.attrs["K"]
    rows = _block_of_rows(n, k)
    flat = b.Reshape(dy, b.ints(-1, n))
    done = n - n % rows
    total = _loop(b, weights, flat, rows) if done > rows else None
    for start in range(done if total is not None else 0, n, rows):
        end = min(start + rows, n)
        part = b.Slice(flat, b.ints(start), b.ints(end), b.ints(1))
        partial = b.MatMul(part, weights.read(b, b.const(np.arange(start, end))))
        total = partial if total is None else b.Add(total, partial)
    assert total is not None
    zero = optional_input(node, 3)
    if zero is not None and zero.tensor.dtype is not U8:
        total = b.Add(total, _by_float_zero_points(b, node, zero, flat))
    outer = b.Slice(b.Shape(dy), b.ints(0), b.ints(-1))
    return b.Reshape(total, b.Concat(outer, b.ints(k), axis=0))


def _by_float_zero_points(b: Builder, node: Node, zero: Value, dy: Value) -> Value:
    """What zero points of floats add to the product with weights that have the default ones.

    (code - zero) scale is (code - default) scale + (default - zero) scale. The last term is one
    number per block: dy is multiplied with these, and the result repeated over each block.
    """
    n, k, block = (node.attrs[name] for name in ("N", "K", "block_size"))
    default = b.const(1 << node.attrs["bits"] - 1, zero.tensor.dtype)
    scales = _matrix(b, input_of(node, 2), n)
    per_block = b.Mul(b.Sub(default, _matrix(b, zero, n)), scales)
    products = b.Unsqueeze(b.MatMul(dy, per_block), b.ints(-1))
    repeated = b.Expand(products, b.ints(1, 1, block))
    whole = b.Reshape(repeated, b.ints(-1, -(-k // block) * block))
    return whole if k % block == 0 else b.Slice(whole, b.ints(0), b.ints(k), b.ints(1))


def _block_of_rows(n: int, k: int) -> int:
    """The number of rows to dequantize at a time: one that divides all, if it is large enough."""
    most = max(64, ELEMENTS_AT_ONCE // k)
    if n <= most:
        return n
    return next((rows for rows in range(most, most // 2, -1) if n % rows == 0), most)


class _RowReader:
    """Reads dequantized rows of the weights of a MatMulNBits, without zero points of floats."""

    def __init__(self, b: Builder, node: Node) -> None:
        attrs, zero = node.attrs, optional_input(node, 3)
        if zero is not None and zero.tensor.dtype is not U8:
            zero = None  # see _by_float_zero_points
        n = attrs["N"]
        self._layout = {"bits": attrs["bits"], "block_size": attrs["block_size"]}
        self._data = _matrix(b, input_of(node, 1), n)
        self._scales = _matrix(b, input_of(node, 2), n)
        self._zero = None if zero is None else _matrix(b, zero, n)
        self._k = attrs["K"] if attrs["K"] % attrs["block_size"] else None

    def read(self, b: Builder, rows: Value) -> Value:
        """Some rows, in the type of the scales."""
        inputs = (self._data, rows, self._scales, self._zero)
        read = b.GatherBlockQuantized(
            *inputs, domain=MICROSOFT, gather_axis=0, quantize_axis=1, **self._layout
        )
        if self._k is None:
            return read
        return b.Slice(read, b.ints(0), b.ints(self._k), b.ints(1))


def _matrix(b: Builder, value: Value, n: int) -> Value:
    """A value of n rows as a matrix; the bytes of a constant in a file stay there."""
    const, count = value.const, product(value.tensor.dims)
    if const is not None and isinstance(count, int):
        same_bytes = reshaped(const, (n, count // n))
        if same_bytes is not None:
            return constant(same_bytes)
    return b.Reshape(value, b.ints(n, -1))


def _loop(b: Builder, weights: _RowReader, dy: Value, rows: int) -> Value:
    """The sum of products over whole blocks of rows."""
    body = Graph("rows")
    iteration, condition = Value("", Fact(I64, ())), Value("", Fact(BOOL, ()))
    inner = Builder(body, body.scope)
    start = inner.Mul(iteration, inner.const(rows, I64))
    index = inner.Add(inner.const(np.arange(rows)), start)
    partial = inner.MatMul(inner.Gather(dy, index, axis=1), weights.read(inner, index))
    total = Value("", partial.tensor.without_contents())
    body.set_inputs([iteration, condition, total])
    body.set_outputs([condition, inner.Add(total, partial)])
    n_rows, (n, k) = (
        b.element(b.Shape(dy), 0),
        (known_size(v.tensor.dims[1]) for v in (dy, partial)),
    )
    zero = ArrayConst(np.zeros(1, dy.tensor.dtype.np))
    initial = b.ConstantOfShape(b.Concat(n_rows, b.ints(k), axis=0), value=zero)
    return b.node("Loop", b.const(n // rows, I64), None, initial, body=body).outputs[0]


OPS: Final = (matmul_gradient,)

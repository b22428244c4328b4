"""Gradients of ops with n-bit weights, which stay quantized: rows are dequantized as needed."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.graph.const import ArrayConst, reshaped
from sardonyx.graph.constant import constant
from sardonyx.graph.dim import product
from sardonyx.graph.dtype import BOOL, I64, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import known_size
from sardonyx.ops.gather.gradient import scatter_add
from sardonyx.ops.gradients import GradientBuilder, gradient, ranked

Grads = list[Value | None]
# Elements of the weights that are dequantized at a time. 2 MB of float32 stay in the L2 cache until
# the product reads them.
ELEMENTS_AT_ONCE: Final = 1 << 19


@gradient("MatMulNBits", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    """The product of dy and the weights [N, K], by blocks of their rows."""
    x, bias = input_of(node, 0), optional_input(node, 5)
    grads: Grads = [None] * len(node.inputs)
    if bias is not None and b.wants(bias):
        grads[5] = b.sum_to(dy, bias)
    if not b.wants(x):
        return grads
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
    grads[0] = b.reshape(total, x)
    return grads


def _by_float_zero_points(b: GradientBuilder, node: Node, zero: Value, dy: Value) -> Value:
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

    def __init__(self, b: GradientBuilder, node: Node) -> None:
        if optional_input(node, 4) is not None:
            raise NotImplemented("MatMulNBits with g_idx has no gradient", hint="reorder its rows")
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


def _matrix(b: GradientBuilder, value: Value, n: int) -> Value:
    """A value of n rows as a matrix; the bytes of a constant in a file stay there."""
    const, count = value.const, product(ranked(value).dims)
    if const is not None and isinstance(count, int):
        same_bytes = reshaped(const, (n, count // n))
        if same_bytes is not None:
            return constant(same_bytes)
    return b.Reshape(value, b.ints(n, -1))


def _loop(b: GradientBuilder, weights: _RowReader, dy: Value, rows: int) -> Value:
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
        b.element(b.shape(dy), 0),
        (known_size(v.tensor.dims[1]) for v in (dy, partial)),
    )
    zero = ArrayConst(np.zeros(1, dy.tensor.dtype.np))
    initial = b.ConstantOfShape(b.Concat(n_rows, b.ints(k), axis=0), value=zero)
    return Builder.node(b, "Loop", b.const(n // rows, I64), None, initial, body=body).outputs[0]


@gradient("GatherBlockQuantized", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    """By the scales: dy times the codes, summed over each block, then over equal indices."""
    data, index, scales = (input_of(node, i) for i in range(3))
    attrs, rank, block = node.attrs, ranked(data).rank, node.attrs["block_size"]
    width = ranked(node.outputs[0]).dims[-1]
    is_usual = attrs["gather_axis"] % rank == 0 and attrs["quantize_axis"] % rank == rank - 1
    if not is_usual or not block or not isinstance(width, int) or width % block:
        raise NotImplemented(
            "GatherBlockQuantized has a gradient with respect to its scales only if it gathers "
            "along the first axis, and whole blocks are along the last"
        )
    ones = b.Expand(b.const(1, scales.tensor.dtype), b.shape(scales))
    zero = optional_input(node, 3)
    codes = b.GatherBlockQuantized(data, index, ones, zero, domain=MICROSOFT, **attrs)
    sizes = b.Slice(b.shape(dy), b.ints(0), b.ints(-1))
    by_block = b.Reshape(b.Mul(dy, codes), b.Concat(sizes, b.ints(-1, block), axis=0))
    return [
        None,
        None,
        scatter_add(b, scales, index, b.ReduceSum(by_block, b.ints(-1), keepdims=0), 0),
    ]

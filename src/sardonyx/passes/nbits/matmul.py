"""n-bit weights: how a QDQ matmul becomes MatMulNBits, and a QDQ Gather GatherDequantized.

A QDQ matmul is a MatMul whose right operand is DequantizeLinear of a constant, perhaps with Cast,
Transpose or Reshape in between. `weight_origin` follows it to its stored bytes. If they are a dense
matrix with one scale per block of K, per column or in all, the matmul reads them as they are
stored: nothing is dequantized before a run. MatMulNBits and GatherBlockQuantized of com.microsoft
have such weights already and become the same internal ops.

A matmul keeps its float weights if

- the weights are not a dense matrix, stored as [K, N] or [N, K], or another op computes them;
- codes, scales or zero points are not constant, or a size is symbolic or 0;
- scales have gaps, or blocks along both K and N; or those per row of K are too many to be read now,
  or their zero points differ;
- many rows multiply few weights, and int8 activations are not allowed;
- g_idx permutes the blocks of a MatMulNBits.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

import numpy as np

from sardonyx.base.log import logger
from sardonyx.base.records import frozen
from sardonyx.graph.const import ArrayConst, Const, Recipe, reshaped
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import F32, U8, DType
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops import lookup
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import Code, Instruction, concatenated
from sardonyx.ops.nbits.internal import QUANTIZED, REALS
from sardonyx.passes.nbits.weight_origin import StridedAxis, WeightOrigin, weight_origin
from sardonyx.passes.options import GraphOptimizationLevel as Level
from sardonyx.passes.options import PassOptions
from sardonyx.passes.replace import attribute_to, drop, replace_value, try_build
from sardonyx.passes.rule import need, present, ranked

INT8: Final = 4  # the accuracy_level of com.microsoft.MatMulNBits that allows int8 activations
# Block sizes of activations that are quantized to int8, for weights whose scales have no blocks.
DEFAULT_BLOCK, MIN_BLOCK, MAX_BLOCK = 32, 16, 256
# Up to so many weights, read by at least so many rows, are left to `float_weights`.
_FEW_WEIGHTS: Final = 1 << 14
_MANY_ROWS: Final = 64


@frozen
class MatmulAccuracy:
    """How matmuls with n-bit weights may round."""

    level: int  # accuracy_level of dequantized weights
    is_forced: bool  # the level also replaces that of MatMulNBits nodes
    block: int  # block size of activations where scales have no blocks; 0: the default, -1: by K

    def block_of(self, k: int) -> int:
        """The block size for weights with scales for whole columns of K elements."""
        if self.block >= 0:
            return self.block or DEFAULT_BLOCK
        # k & -k is the largest power of two that divides K: no block is cut at the end.
        return max(MIN_BLOCK, min(MAX_BLOCK, k & -k))


@frozen
class _StoredMatrix:
    """The weights [K, N] of a matmul as they are stored."""

    inputs: tuple[Value, Value | None, Value | None]  # codes, scales, zero points
    attrs: dict[str, int]
    factors: Value | None = None  # one per row of the weights, to be multiplied into x instead


def read_stored_weights(graph: Graph, options: PassOptions) -> None:
    """Rewrite matmuls and gathers, in a graph and its bodies, to read n-bit weights as stored.

    Below the extended level only nodes of com.microsoft are rewritten, which have no other kernel.
    """
    # The option int8 also overrides what the nodes of the model allow.
    level = INT8 if options.int8 else options.weight_level
    accuracy = MatmulAccuracy(level, options.int8, options.weight_block)
    is_disabled = options.disabled & {"read_weights", "DQMatMulNBitsFusion"}
    has_qdq = options.level >= Level.ORT_ENABLE_EXTENDED and not is_disabled
    rewrites = {**_MICROSOFT_OPS, **_QDQ_OPS} if has_qdq else _MICROSOFT_OPS
    for each in list(graph.family()):
        for node in list(each.nodes):
            rewrite = rewrites.get(node.op.key)
            if rewrite is not None:
                b = Builder(each, each.scope)
                new = try_build(b, partial(rewrite, b, node, accuracy), "read_weights", node)
                if new is not None:
                    _replace(b, node, new)


def _replace(b: Builder, node: Node, new: Value) -> None:
    """Replace a node by what was built for it."""
    logger.debug("read_weights at %s", node)
    attribute_to(b.new_nodes, node)
    # Readers know the symbolic dims of the old fact.
    new.fact = node.outputs[0].tensor.without_contents()
    replace_value(b.graph, node.outputs[0], new)
    drop(b.graph, [node])


def _qdq_matmul(b: Builder, node: Node, accuracy: MatmulAccuracy) -> Value:
    """MatMulNBits for a matmul whose right operand is dequantized."""
    left, right = input_of(node, 0), input_of(node, 1)
    ranked(left, right)
    dtype = left.tensor.dtype
    need(dtype in REALS and right.tensor.rank == 2, "the weights are not a float matrix")
    origin = weight_origin(right)
    # K is summed over, N are the columns of the result.
    k, n = reversed(origin.dims) if node.attrs["trans_b"] else origin.dims
    is_reused = _row_count(left) >= _MANY_ROWS and k.size * n.size <= _FEW_WEIGHTS
    need(not is_reused or accuracy.level == INT8, "few weights for many rows: float32 is faster")
    weights = _stored_matrix(origin, k, n, accuracy)
    rows, m = left, left.tensor.rank
    if node.attrs["trans_a"]:
        rows = b.Transpose(left, perm=(*range(m - 2), m - 1, m - 2))
    code, operands = _epilogue(b, node, dtype)
    if weights.factors is not None:
        # x diag(s) q: scales along K move to the activations, in float32.
        rows = b.Mul(b.cast(rows, F32), weights.factors)
    attrs: dict[str, Any] = {**weights.attrs, "code": code}
    y = b.MatMulNBits(rows, *weights.inputs, *operands, domain=INTERNAL, **attrs)
    return b.cast(y, dtype)


def _row_count(value: Value) -> int:
    """The rows of activations; 0 if they are known only at run time."""
    static = value.tensor.static
    return 0 if static is None or not static else math.prod(static[:-1])


def _epilogue(b: Builder, node: Node, dtype: DType) -> tuple[Code | None, list[Value]]:
    """The epilogue of a matmul, starting with its factor alpha, and its operands."""
    operands = [_constant_bias(b, v) for v in node.inputs[2:] if v is not None]
    code, alpha = node.attrs["code"], node.attrs["alpha"]
    # MatMulNBits has no attribute alpha.
    if alpha == 1:
        return code, operands
    factor: Code = (Instruction((ONNX, "Mul"), (0, 1), dtype),)
    whole = concatenated(factor, 2, code, len(operands) + 1) if code else factor
    return whole, [b.const(alpha, dtype), *operands]


def _constant_bias(b: Builder, value: Value) -> Value:
    """A short constant in place of its DequantizeLinear, as QDQ models have for biases."""
    node = value.node
    if node is None or node.op.key != (ONNX, "DequantizeLinear"):
        return value
    # Biases are read now: they are short, and fusions need a constant.
    consts = [c for v in node.inputs if v is not None and (c := v.const) is not None]
    if len(consts) < len(node.inputs) or not all(c.is_small for c in consts):
        return value
    return b.const(node.op.run([c.read() for c in consts], node.attrs)[0])


def _stored_matrix(
    origin: WeightOrigin, k: StridedAxis, n: StridedAxis, accuracy: MatmulAccuracy
) -> _StoredMatrix:
    """Weights [K, N] in one of the layouts that the kernel reads: [K, N] or [N, K], dense."""
    is_k_major = _is_row_major(k, n)
    need(is_k_major or _is_row_major(n, k), "neither rows nor columns are contiguous")
    dtype = origin.q.tensor.dtype
    attrs = {
        "K": k.size, "N": n.size, "bits": dtype.bits, "k_major": int(is_k_major),
        "signed": int(dtype.kind == "int"), "level": INT8 if accuracy.level == INT8 else 0,
        "block_size": k.block if k.scale_stride else accuracy.block_of(k.size),
    }  # fmt: skip
    stored = _reshaped(origin.q, (k.size, n.size) if is_k_major else (n.size, k.size))
    if k.scale_stride and not n.scale_stride and n.size > 1:
        # One scale per row of the weights, for all columns: no layout of scales has this.
        attrs["block_size"] = accuracy.block_of(k.size)
        one = constant(ArrayConst(np.ones(1, np.float32)))
        zero, factors = _single_zero_point(origin.zero), _repeat_blocks(origin.scale, k)
        return _StoredMatrix((stored, one, zero), attrs, factors)
    scale, zero = (_scales(v, k, n, is_k_major) for v in (origin.scale, origin.zero))
    return _StoredMatrix((stored, scale, zero), attrs)


def _is_row_major(outer: StridedAxis, inner: StridedAxis) -> bool:
    """Whether a matrix is stored row by row without gaps."""
    # The stride of an axis with one position does not matter.
    is_dense = inner.size == 1 or inner.stride == 1
    return is_dense and (outer.size == 1 or outer.stride == inner.size)


def _scales(value: Value | None, k: StridedAxis, n: StridedAxis, is_k_major: bool) -> Value | None:
    """Scales or zero points in a shape that says which blocks and columns they belong to.

    That is [blocks of K, N] for weights [K, N], and [N, blocks of K] for weights [N, K].
    """
    if value is None or not (k.scale_stride or n.scale_stride):
        return value
    # One scale per column, or per block of columns, which is repeated.
    if not k.scale_stride:
        need(n.scale_stride == 1, "scales are not contiguous")
        row = value if n.block == 1 else _repeat_blocks(value, n, value.tensor.dtype)
        return _reshaped(row, (1, n.size) if is_k_major else (n.size, 1))
    need(n.block == 1, "columns share scales in blocks")
    outer, inner = (k, n) if is_k_major else (n, k)
    # Scales stored in the other order than the weights are transposed; they are small.
    if inner.scale_stride == outer.n_blocks and outer.scale_stride == 1:
        return _transposed_constant(_reshaped(value, (inner.n_blocks, outer.n_blocks)))
    is_dense = inner.size == 1 or inner.scale_stride == 1
    need(is_dense and outer.scale_stride == inner.n_blocks, "scales are not contiguous")
    return _reshaped(value, (outer.n_blocks, inner.n_blocks))


def _transposed_constant(value: Value) -> Value:
    """A transposed constant matrix, as a recipe."""
    op, const = lookup(ONNX, "Transpose"), value.const
    assert op is not None
    assert const is not None
    result = (const.dtype, const.shape[::-1])
    return constant(Recipe(op, (const,), {"perm": (1, 0)}, 0, result))


def _reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    """A constant in another shape that refers to the same stored bytes."""
    if value.tensor.static == shape:
        return value
    const = None if value.const is None else reshaped(value.const, shape)
    return constant(present(const, "the constant is computed, not stored"))


def _small_constant(value: Value, reason: str) -> Const:
    """A constant short enough to be read now."""
    const = present(value.const, reason)
    need(const.is_small, reason)
    return const


def _repeat_blocks(value: Value, axis: StridedAxis, dtype: DType = F32) -> Value:
    """A short constant with one number per position of an axis, instead of one per block."""
    const = _small_constant(value, "too many scales")
    need(axis.scale_stride == 1, "scales are not contiguous")
    row = np.repeat(const.read().reshape(-1), axis.block)[: axis.size]
    return constant(ArrayConst(row.astype(dtype.np)))


def _single_zero_point(zero: Value | None) -> Value | None:
    """The zero point that all positions share."""
    if zero is None:
        return None
    points = _small_constant(zero, "too many zero points").read().reshape(-1)
    need(bool((points == points[0]).all()), "zero points differ along the rows")
    return constant(ArrayConst(points[:1].copy()))


def _qdq_gather(b: Builder, node: Node, accuracy: MatmulAccuracy) -> Value:
    """GatherDequantized for a Gather from dequantized weights, as an embedding table."""
    data, indices = input_of(node, 0), input_of(node, 1)
    ranked(indices)
    origin = weight_origin(data)
    attrs: dict[str, Any] = {
        "axis": node.attrs["axis"] % data.tensor.rank,
        "bits": origin.q.tensor.dtype.bits,
        "dtype": data.tensor.dtype.onnx,
    }
    table, zero = origin.q, origin.zero
    scale: Value | None = origin.scale
    if origin.is_moved:
        # A tied embedding: the table is the transposed weight of the last matmul.
        need(len(origin.dims) == 2, "the table is not a matrix")
        rows, columns = origin.dims
        need(_is_row_major(rows, columns) and columns.scale_stride, "rows are not contiguous")
        table = _reshaped(table, (rows.size, columns.size))
        scale, zero = (_scales(v, columns, rows, False) for v in (scale, zero))
        assert scale is not None
        need(scale.tensor.static == (rows.size, columns.n_blocks), "scales are not contiguous")
        attrs |= {"quantize_axis": 1, "block_size": columns.block}
    else:
        attrs["quantize_axis"] = origin.node.attrs["axis"] % max(1, table.tensor.rank)
        attrs["block_size"] = origin.node.attrs["block_size"]
    return b.GatherDequantized(table, indices, scale, zero, domain=INTERNAL, **attrs)


def _microsoft_matmul(b: Builder, node: Node, accuracy: MatmulAccuracy) -> Value:
    """The internal op for MatMulNBits; the node's accuracy_level counts unless one is forced."""
    x = input_of(node, 0)
    q, scale, zero, groups, bias = (optional_input(node, i) for i in range(1, 6))
    ranked(x)
    need(all(v is None or v.is_const for v in (q, scale, zero)), "the weights are not constant")
    # g_idx assigns a block of scales to each row of K (GPTQ with act-order).
    need(groups is None, "blocks are permuted by g_idx")
    attrs = {name: node.attrs[name] for name in ("K", "N", "bits", "block_size")}
    # Without zero points the codes are unsigned with their middle as zero: 8 of 4 bits.
    return b.MatMulNBits(
        x, q, scale, zero, *(() if bias is None else (_constant_bias(b, bias),)),
        domain=INTERNAL, **attrs, zero_default=1 << attrs["bits"] - 1,
        level=INT8 if accuracy.is_forced or node.attrs["accuracy_level"] == INT8 else 0,
        code=None if bias is None else (Instruction((ONNX, "Add"), (0, 1), x.tensor.dtype),),
    )  # fmt: skip


def _microsoft_gather(b: Builder, node: Node, accuracy: MatmulAccuracy) -> Value:
    """The internal op for GatherBlockQuantized, which reads zeros at indices out of range."""
    q, indices, scale = (input_of(node, i) for i in range(3))
    zero = optional_input(node, 3)
    ranked(indices)
    need(all(v is None or v.is_const for v in (q, scale, zero)), "the table is not constant")
    fact, rank, attrs = q.tensor, q.tensor.rank, node.attrs
    need(fact.dtype in QUANTIZED, "the table has no integer type")
    return b.GatherDequantized(
        q, indices, scale, zero, domain=INTERNAL, axis=attrs["gather_axis"] % rank,
        quantize_axis=attrs["quantize_axis"] % rank, block_size=attrs["block_size"],
        bits=attrs["bits"], dtype=scale.tensor.dtype.onnx, fills=1,
        zero_default=1 << attrs["bits"] - 1 if fact.dtype is U8 else 0,
    )  # fmt: skip


_MICROSOFT_OPS: Final = {
    (MICROSOFT, "MatMulNBits"): _microsoft_matmul,
    (MICROSOFT, "GatherBlockQuantized"): _microsoft_gather,
}
# The MatMul of Sardonyx: MatMul and Gemm are lowered to it before this pass.
_QDQ_OPS: Final = {(INTERNAL, "MatMul"): _qdq_matmul, (ONNX, "Gather"): _qdq_gather}

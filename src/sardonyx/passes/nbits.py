"""Weights of few bits: products and tables read them as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.log import logger
from sardonyx.base.records import frozen
from sardonyx.errors import SardonyxError
from sardonyx.graph.const import Held, Recipe, reshaped
from sardonyx.graph.constant import constant
from sardonyx.graph.dtype import F32, U8, DType
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops import lookup
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import Code, Instruction, joined
from sardonyx.ops.nbits.internal import REALS, STEPS
from sardonyx.passes.driver import drop
from sardonyx.passes.options import GraphOptimizationLevel as Level
from sardonyx.passes.options import PassOptions
from sardonyx.passes.rule import NoMatch, need, ranked
from sardonyx.passes.stored import Origin, Run, origin

_FUSES: Final = Level.ORT_ENABLE_EXTENDED  # the level from which on dequantized weights count
INT8: Final = 4  # the accuracy level at which activations may become int8
DEFAULT_BLOCK, LEAST_BLOCK, MOST_BLOCK = 32, 16, 256


@frozen
class Choice:
    """How products of dequantized weights are computed."""

    level: int  # of accuracy, as com.microsoft.MatMulNBits counts them
    is_forced: bool  # products that say their level of accuracy take this one too
    block: int  # of activations where scales have none; 0: the usual one, -1: by K

    def block_of(self, k: int) -> int:
        """The block of weights that have scales for whole columns."""
        if self.block >= 0:
            return self.block or DEFAULT_BLOCK
        return max(LEAST_BLOCK, min(MOST_BLOCK, k & -k))


def choice(options: PassOptions) -> Choice:
    """What the options say."""
    level = INT8 if options.int8 else options.weight_level
    return Choice(level, options.int8, options.weight_block)


@frozen
class _Weights:
    """What a product reads: weights [K, N] as they are stored."""

    q: Value
    scale: Value
    zero: Value | None
    attrs: dict[str, int]
    factors: Value | None = None  # of the columns of x, where scales go along K

    @property
    def inputs(self) -> tuple[Value | None, ...]:
        return self.q, self.scale, self.zero


def read_stored_weights(graph: Graph, options: PassOptions) -> None:
    """Let matmuls and lookups read n-bit weights as they are stored, as the options ask for."""
    is_disabled = options.disabled & {"read_weights", "DQMatMulNBitsFusion"}
    read_weights(graph, choice(options), options.level >= _FUSES and not is_disabled)


def read_weights(graph: Graph, choice: Choice, fuses: bool) -> None:
    """Products and tables, in a graph and its bodies, read their weights as they are stored.

    With `fuses`, so do those of dequantized constants.
    """
    rewrites = {**_STORED, **_DEQUANTIZED} if fuses else _STORED
    for part in list(graph.family()):
        for node in list(part.nodes):
            rewrite = rewrites.get(node.op.key)
            if rewrite is None:
                continue
            builder, n_guards = Builder(part, part.scope), len(part.scope.found)
            try:
                new = rewrite(builder, node, choice)
            except (NoMatch, SardonyxError) as reason:
                for made in reversed(builder.made):
                    part.remove(made)
                del part.scope.found[n_guards:]
                logger.debug("read_weights not at %s: %s", node, reason)
                continue
            _settle(part, node, new, builder.made)


def _settle(graph: Graph, node: Node, new: Value, made: Sequence[Node]) -> None:
    old = node.outputs[0]
    logger.debug("read_weights at %s", node)
    for other in made:
        other.name, other.marks = other.name or node.name, node.marks
    new.fact = old.tensor.plain()
    new.name, old.name = old.name, ""
    graph.replace(old, new)
    drop(graph, [node])


def _product(b: Builder, node: Node, choice: Choice) -> Value:
    """A product with dequantized weights on its right."""
    left, right = node.inputs[:2]
    assert left is not None
    assert right is not None
    ranked(left, right)
    dtype = left.tensor.dtype
    need(dtype in REALS and right.tensor.rank == 2, "no matrix of real numbers")
    made = origin(right)
    k, n = reversed(made.dims) if node.attrs["trans_b"] else made.dims
    weights = _weights(made, k, n, choice)
    rows = _turned(b, left) if node.attrs["trans_a"] else left
    code, operands = _epilogue(b, node, dtype)
    if weights.factors is not None:
        wide = rows if dtype is F32 else b.Cast(rows, to=F32.onnx)
        rows = b.Mul(wide, weights.factors)
    attrs: dict[str, Any] = {**weights.attrs, "code": code}
    inputs = (rows, *weights.inputs, *operands)
    y: Value = b.node("MatMulNBits", *inputs, domain=INTERNAL, **attrs).outputs[0]
    return y if y.tensor.dtype is dtype else b.Cast(y, to=dtype.onnx)


def _turned(b: Builder, value: Value) -> Value:
    rank = value.tensor.rank
    made: Value = b.Transpose(value, perm=(*range(rank - 2), rank - 1, rank - 2))
    return made


def _epilogue(b: Builder, node: Node, dtype: DType) -> tuple[Code | None, list[Value]]:
    """What is done to the sums of a product: its factor first, then what it did itself."""
    operands = [_small(b, v) for v in node.inputs[2:] if v is not None]
    code, alpha = node.attrs["code"], node.attrs["alpha"]
    if alpha == 1:
        return code, operands
    factor: Code = (Instruction((ONNX, "Mul"), (0, 1), dtype),)
    whole = joined(factor, 2, code, len(operands) + 1) if code else factor
    return whole, [b.const(alpha, dtype), *operands]


def _small(b: Builder, value: Value) -> Value:
    """A short constant for one that is dequantized, as a bias may be."""
    node = value.node
    if node is None or node.op.key != (ONNX, "DequantizeLinear"):
        return value
    consts = [None if v is None else v.const for v in node.inputs]
    if not all(c is not None and c.is_small for c in consts):
        return value
    arrays = [c.read() for c in consts if c is not None]
    return b.const(node.op.run(arrays, node.attrs)[0])


def _weights(made: Origin, k: Run, n: Run, choice: Choice) -> _Weights:
    """Weights [K, N] in one of the forms that a product reads."""
    is_k_major = _follows(k, n)
    need(is_k_major or _follows(n, k), "neither rows nor columns follow each other")
    dtype = made.q.tensor.dtype
    attrs = {
        "K": k.size, "N": n.size, "bits": dtype.bits, "k_major": int(is_k_major),
        "signed": int(dtype.kind == "int"), "level": INT8 if choice.level == INT8 else 0,
        "block_size": k.block if k.scale_stride else choice.block_of(k.size),
    }  # fmt: skip
    stored = _shaped(made.q, (k.size, n.size) if is_k_major else (n.size, k.size))
    if k.scale_stride and not n.scale_stride and n.size > 1:
        attrs["block_size"] = choice.block_of(k.size)
        one = constant(Held(np.ones(1, np.float32)))
        return _Weights(stored, one, _only(made.zero), attrs, _spread(made.scale, k))
    scale, zero = (_scales(v, k, n, is_k_major) for v in (made.scale, made.zero))
    assert scale is not None
    return _Weights(stored, scale, zero, attrs)


def _follows(outer: Run, inner: Run) -> bool:
    """Whether a matrix lies row by row, without gaps."""
    is_dense = inner.size == 1 or inner.stride == 1
    return is_dense and (outer.size == 1 or outer.stride == inner.size)


def _scales(value: Value | None, k: Run, n: Run, is_k_major: bool) -> Value | None:
    """Scales or zero points in a shape that says which blocks and columns they are for."""
    if value is None or not (k.scale_stride or n.scale_stride):
        return value
    if not k.scale_stride:
        need(n.scale_stride == 1, "scales are mixed")
        row = value if n.block == 1 else _spread(value, n, value.tensor.dtype)
        return _shaped(row, (1, n.size) if is_k_major else (n.size, 1))
    need(n.block == 1, "blocks along the columns")
    outer, inner = (k, n) if is_k_major else (n, k)
    if inner.scale_stride == outer.n_blocks and outer.scale_stride == 1:
        return _flipped(_shaped(value, (inner.n_blocks, outer.n_blocks)))
    is_dense = inner.size == 1 or inner.scale_stride == 1
    need(is_dense and outer.scale_stride == inner.n_blocks, "scales are mixed")
    return _shaped(value, (outer.n_blocks, inner.n_blocks))


def _flipped(value: Value) -> Value:
    """A constant matrix turned: a recipe, for what is small beside its weights."""
    op, const = lookup(ONNX, "Transpose"), value.const
    assert op is not None
    assert const is not None
    rows, columns = const.shape
    turned = (const.dtype, (columns, rows))
    return constant(Recipe(op, (const,), {"perm": (1, 0)}, 0, turned))


def _shaped(value: Value, shape: tuple[int, ...]) -> Value:
    """A constant in another shape, its bytes where they are."""
    if value.tensor.static == shape:
        return value
    const = None if value.const is None else reshaped(value.const, shape)
    need(const is not None, "a constant that is computed")
    assert const is not None
    return constant(const)


def _spread(value: Value, run: Run, dtype: DType = F32) -> Value:
    """A short constant with one number for each place of a run, instead of each block."""
    const = value.const
    need(const is not None and const.is_small and run.scale_stride == 1, "many scales")
    assert const is not None
    row = np.repeat(const.read().reshape(-1), run.block)[: run.size]
    return constant(Held(row.astype(dtype.np)))


def _only(zero: Value | None) -> Value | None:
    """The one zero point that all places have."""
    if zero is None:
        return None
    need(zero.const is not None and zero.const.is_small, "many zero points")
    assert zero.const is not None
    points = zero.const.read().reshape(-1)
    need(bool((points == points[0]).all()), "zero points go along the rows")
    return constant(Held(points[:1].copy()))


def _table(b: Builder, node: Node, choice: Choice) -> Value:
    """A Gather from dequantized weights."""
    data, indices = node.inputs
    assert data is not None
    assert indices is not None
    ranked(indices)
    made = origin(data)
    attrs: dict[str, Any] = {
        "axis": node.attrs["axis"] % data.tensor.rank,
        "bits": made.q.tensor.dtype.bits,
        "dtype": data.tensor.dtype.onnx,
    }
    table, scale, zero = made.q, made.scale, made.zero
    if made.is_moved:
        need(len(made.dims) == 2, "no matrix")
        rows, columns = made.dims
        need(_follows(rows, columns) and columns.scale_stride, "rows do not follow each other")
        table = _shaped(table, (rows.size, columns.size))
        grid = [_scales(v, columns, rows, False) for v in (scale, zero)]
        assert grid[0] is not None
        scale, zero = grid[0], grid[1]
        need(scale.tensor.static == (rows.size, columns.n_blocks), "scales are mixed")
        attrs |= {"quantize_axis": 1, "block_size": columns.block}
    else:
        attrs["quantize_axis"] = made.node.attrs["axis"] % max(1, table.tensor.rank)
        attrs["block_size"] = made.node.attrs["block_size"]
    y: Value = b.GatherDequantized(table, indices, scale, zero, domain=INTERNAL, **attrs)
    return y


def _given(node: Node, slot: int) -> Value | None:
    return node.inputs[slot] if len(node.inputs) > slot else None


def _stored_product(b: Builder, node: Node, choice: Choice) -> Value:
    """A product of com.microsoft; its level of accuracy is the model's wish, unless forced."""
    x, q, scale, zero, groups, bias = (_given(node, i) for i in range(6))
    assert x is not None
    ranked(x)
    need(all(v is None or v.is_const for v in (q, scale, zero)), "the weights are not constant")
    need(groups is None, "blocks are not in order")
    attrs = {name: node.attrs[name] for name in ("K", "N", "bits", "block_size")}
    made: Value = b.MatMulNBits(
        x, q, scale, zero, *(() if bias is None else (_small(b, bias),)),
        domain=INTERNAL, **attrs, zero_default=1 << attrs["bits"] - 1,
        level=INT8 if choice.is_forced or node.attrs["accuracy_level"] == INT8 else 0,
        code=None if bias is None else (Instruction((ONNX, "Add"), (0, 1), x.tensor.dtype),),
    )  # fmt: skip
    return made


def _stored_table(b: Builder, node: Node, choice: Choice) -> Value:
    """A table of com.microsoft, which reads zeros at indices that are outside."""
    q, indices, scale, zero = (_given(node, i) for i in range(4))
    assert q is not None
    assert indices is not None
    assert scale is not None
    ranked(indices)
    need(all(v is None or v.is_const for v in (q, scale, zero)), "the table is not constant")
    fact, rank, attrs = q.tensor, q.tensor.rank, node.attrs
    need(fact.dtype in STEPS, "a table of small floats")
    made: Value = b.GatherDequantized(
        q, indices, scale, zero, domain=INTERNAL, axis=attrs["gather_axis"] % rank,
        quantize_axis=attrs["quantize_axis"] % rank, block_size=attrs["block_size"],
        bits=attrs["bits"], dtype=scale.tensor.dtype.onnx, fills=1,
        zero_default=1 << attrs["bits"] - 1 if fact.dtype is U8 else 0,
    )  # fmt: skip
    return made


_STORED: Final = {
    (MICROSOFT, "MatMulNBits"): _stored_product,
    (MICROSOFT, "GatherBlockQuantized"): _stored_table,
}
_DEQUANTIZED: Final = {(INTERNAL, "MatMul"): _product, (ONNX, "Gather"): _table}

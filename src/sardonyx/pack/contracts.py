"""Preconditions of internal ops (domain `sardonyx`) that their kernels do not check.

Inference checks what it needs for types and shapes. The rest the passes guarantee in a compiled
model, and these contracts check in the graph of a pack, so that no kernel reads out of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from sardonyx.graph.dim import Size, product
from sardonyx.graph.dtype import F32, I8, I32, I64, U8, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node
from sardonyx.graph.guard import Scope
from sardonyx.pack.codec import require

_RESULT_TYPES: Final = (F32, I32, I8, U8)  # result types of quantized ops


class _Call:
    """A node to check: the facts of its inputs (None: absent), and conditions on them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.attrs = node.attrs
        self.scope: Scope = node.graph.scope
        self.scope.node = node
        # Padded, so that contracts can unpack absent trailing inputs.
        inputs = (*node.inputs, *[None] * (16 - len(node.inputs)))
        self.facts: list[Any] = [None if v is None else v.tensor for v in inputs]

    def require(self, condition: object, what: str) -> None:
        require(condition, f"{self.node.op}: {what}")

    def ranks(self, rank: int, *positions: int) -> None:
        """Inputs that are present have this rank."""
        for position in positions:
            fact = self.facts[position]
            self.require(fact is None or fact.rank == rank, f"input {position} is {fact}")

    def together(self, *positions: int) -> None:
        """All of the inputs are present, or none."""
        are_present = {self.facts[p] is not None for p in positions}
        self.require(len(are_present) == 1, f"of inputs {positions} some are missing")

    def same(self, a: Size, b: Size) -> None:
        """Two sizes are equal; where that is not known, a guard checks it before each run."""
        self.scope.equal(a, b, f"sizes of {self.node.op}")

    def single(self, position: int) -> None:
        """An input that is present has one element."""
        fact = self.facts[position]
        for size in () if fact is None else fact.dims:
            self.same(size, 1)

    def counts(self, columns: Size, *positions: int) -> None:
        """Inputs that are present have one element, or one per column."""
        for position in positions:
            fact = self.facts[position]
            if fact is None or all(d == 1 for d in fact.dims):
                continue
            self.require(fact.rank, f"input {position} is {fact}")
            self.require(all(d == 1 for d in fact.dims[:-1]), f"input {position} is {fact}")
            self.scope.equal_or_one(fact.dims[-1], columns, f"sizes of {self.node.op}")

    def result(self, zero: int) -> None:
        """The attribute `dtype` is a type of quantized ops, and that of the zero point."""
        dtype, fact = by_onnx(self.attrs["dtype"]), self.facts[zero]
        self.require(dtype in _RESULT_TYPES, f"a result of {dtype}")
        self.require(fact is None or fact.dtype is dtype, f"a zero point {fact} for {dtype}")


def _qmatmul(c: _Call) -> None:
    w = c.facts[1]
    c.require(w.rank >= 1, f"weights {w}")
    # Of the output: scales and zero points of the weights are per column.
    columns = 1 if w.rank < 2 else w.dims[-2] if c.attrs["trans_w"] else w.dims[-1]
    c.counts(1, 2, 3, 7, 8)
    c.counts(columns, 4, 5, 6)
    c.result(8)


def _qconv(c: _Call) -> None:
    c.counts(1, 2, 3, 7, 8)
    c.counts(c.facts[1].dims[0], 4, 5, 6)
    c.result(8)


def _qadd(c: _Call) -> None:
    c.counts(1, 1, 2, 4, 5, 6, 7)
    c.result(7)


def _qmean(c: _Call) -> None:
    c.require(c.facts[0].rank >= 2, f"an image {c.facts[0]}")
    c.counts(1, 1, 2, 3, 4)
    c.result(4)


def _spans(c: _Call) -> None:
    lengths, total, query, keys = c.facts[:4]
    c.ranks(4, 2, 3)
    c.require((total is None) is not (keys is None), "a total and keys, or neither")
    # GroupQueryAttention has seqlens_k (lengths less 1) and a total, Attention counts and keys.
    c.require(lengths.dtype is (I32 if keys is None else I64), f"lengths {lengths}")
    c.single(1)
    c.same(product(lengths.dims), query.dims[0])


def _check_spans(c: _Call, position: int, batch: Size) -> None:
    spans = c.facts[position]
    if spans is not None:
        c.ranks(2, position)
        c.require(spans.dims[1] == 2, f"spans {spans}")
        c.same(spans.dims[0], batch)


def _append(c: _Call) -> None:
    key, value, past_key, past_value, _, _, query, cos, sin, positions = c.facts[:10]
    c.ranks(4, 0, 1, 2, 3, 6)
    c.together(2, 3)
    c.together(6, 7, 8)
    batch, _, rows, head = key.dims
    for x, y in zip(value.dims[:3], key.dims[:3], strict=True):
        c.same(x, y)
    if past_key is not None:
        for past, new in ((past_key, key), (past_value, value)):
            for axis in (0, 1, 3):
                c.same(past.dims[axis], new.dims[axis])
        c.same(past_key.dims[2], past_value.dims[2])
    c.single(5)
    _check_spans(c, 4, batch)
    c.require(len(c.node.outputs) <= (2 if query is None else 3), "too many outputs")
    c.require(positions is None or query is not None, "positions of nothing")
    # With a query, the kernel also rotates query and key (RoPE) by the angles' cos and sin.
    if query is not None:
        for axis, size in ((0, batch), (2, rows), (3, head)):
            c.same(query.dims[axis], size)
        c.ranks(2, 7, 8)
        half = cos.dims[1]
        c.require(isinstance(half, int) and isinstance(head, int), f"angles {cos} for {key}")
        c.require(2 * half <= head, f"angles {cos} for {key}")
        for axis in (0, 1):
            c.same(cos.dims[axis], sin.dims[axis])
    if positions is not None:
        c.ranks(2, 9)
        c.same(positions.dims[0], batch)
        c.same(positions.dims[1], rows)


def _attention(c: _Call) -> None:
    q, k, v, mask, spans, sink = c.facts[:6]
    group = c.attrs["group"]
    c.require(c.attrs["nan_rows"] in (0, 1, 2) and group >= 1, f"attributes {c.attrs}")
    lead = q.dims[:-2]
    # Grouped-query attention: `group` heads of the query share one of key and value.
    if group > 1:
        c.require(q.rank >= 3 and k.rank == v.rank == q.rank, f"{q}, {k} and {v} in groups")
        for shared in (k.dims[:-2], v.dims[:-2]):
            c.same(shared[-1] * group, lead[-1])
            for x, y in zip(shared[:-1], lead[:-1], strict=True):
                c.same(x, y)
    else:
        lead = c.node.outputs[0].tensor.dims[:-2]
        if c.attrs["rows_first"]:
            lead = (*c.node.outputs[0].tensor.dims[:-3], c.node.outputs[0].tensor.dims[-2])
    c.require(lead or not (c.attrs["rows_first"] or spans or sink), f"{q} has no heads")
    if sink is not None:
        c.ranks(1, 5)
        c.same(sink.dims[0], lead[-1])
    if spans is not None:
        _check_spans(c, 4, lead[0])
    c.require(mask is None or mask.rank <= len(lead) + 2, f"a mask {mask}")


def _nbits(c: _Call) -> None:
    q, scale, zero = c.facts[1:4]
    static = q.static is not None and scale.static is not None
    c.require(static and (zero is None or zero.static is not None), "weights of open sizes")
    # MatMulNBits of com.microsoft has [N, blocks, bytes]; others have the shape of the weight.
    is_blocked = q.rank == 3 and not c.attrs["k_major"]
    c.require(not is_blocked or q.dtype is U8, f"blocks of {q.dtype}")
    if zero is not None and not zero.dtype.is_float:
        whole = zero.dtype is U8 if is_blocked else zero.dtype.bits == c.attrs["bits"]
        c.require(whole, f"zero points {zero} of {c.attrs['bits']} bits")


def _gather(c: _Call) -> None:
    from sardonyx.ops.nbits.gather import table_layout  # few models have quantized embeddings
    from sardonyx.ops.nbits.internal import REALS

    data, _, scale, zero = c.facts[:4]
    attrs = c.attrs
    bits = attrs["bits"]
    for name in ("axis", "quantize_axis"):
        c.require(0 <= attrs[name] < data.rank, f"{name} {attrs[name]} of {data}")
    packed = data.dtype is U8 and bits < 8
    c.require(bits in (2, 4, 8) and (packed or data.dtype.bits == bits), f"{bits} bits of {data}")
    c.require(not packed or attrs["axis"] < data.rank - 1, f"axis {attrs['axis']} of {data}")
    c.require(attrs["block_size"] >= 0, f"blocks of {attrs['block_size']}")
    c.require(by_onnx(attrs["dtype"]) in REALS, "a result that is not real")
    if zero is not None:
        # The last zero point that the kernel may read must exist.
        c.require(zero.static is not None, f"zero points {zero}")
        table = table_layout(data, scale, attrs)
        last = sum(
            (d - 1) // b * s
            for d, b, s in zip(table.dims, table.blocks, table.zero_strides, strict=True)
        )
        count = math.prod(zero.static) * (8 // bits if packed else 1)
        c.require(last < count, f"zero points {zero} for {data}")


CONTRACTS: Final[dict[str, Callable[[_Call], None]]] = {
    "Append": _append,
    "Attention": _attention,
    "GatherDequantized": _gather,
    "MatMulNBits": _nbits,
    "QAdd": _qadd,
    "QConv": _qconv,
    "QMatMul": _qmatmul,
    "QMean": _qmean,
    "Spans": _spans,
}
# Internal ops without further preconditions: inference and `check` cover them.
WITHOUT_CONTRACT: Final = frozenset((
    "AveragePool", "Bnb4Weights", "Chain", "Conv", "ConvTranspose", "ConvWeightGradient",
    "DeformColumns", "IndexedMaxPool", "Loop", "LpPool", "MatMul", "MaxPool", "QLSTM", "QLookup",
    "Sizes",
))  # fmt: skip

# Internal ops of device regions, which packs never contain.
DEVICES: Final = frozenset(("Copy", "FusedMatMulNBits", "Mask"))


def check_node(node: Node) -> None:
    """Raise InvalidPack if an internal node violates the preconditions of its kernel."""
    contract = CONTRACTS.get(node.op.name)
    if contract is None:
        require(
            node.op.name in WITHOUT_CONTRACT,
            f"{node.op} is not an internal op that a pack may contain",
        )
        return
    for value in (*node.inputs, *node.outputs):
        if value is not None:
            fact = value.fact
            require(isinstance(fact, Fact) and fact.shape is not None, f"{node.op} of {fact}")
    contract(_Call(node))

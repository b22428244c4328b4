"""Decompositions of standard ONNX ops without a kernel: Unique, MaxUnpool, DeformConv."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from sardonyx.graph.dim import product
from sardonyx.graph.dtype import BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.builder import Builder
from sardonyx.ops.pooling.standard import unpooled_shape
from sardonyx.passes.rule import need, present, ranked

END: Final = (1 << 63) - 1
# Types that TopK sorts.
_SORTED: Final = frozenset((F32, F64, F16, BF16, I8, U8, I16, U16, I32, U32, I64, U64))


def unique(b: Builder, node: Node) -> tuple[Value, ...]:
    """Unique: sort, mark each element that differs from the one before, and compress."""
    x, outs = given(node, 0), node.outputs
    ranked(x)
    axis, dtype = node.attrs["axis"], x.tensor.dtype
    need(
        dtype in _SORTED and (axis is None or x.tensor.rank == 1),
        "elements of this type or axis cannot be sorted",
    )
    flat = x if x.tensor.rank == 1 else b.Reshape(x, b.ints(-1))
    n = b.Shape(flat)
    ordered, order = b.node("TopK", flat, n, largest=0, outputs=2).outputs
    before = b.Slice(ordered, b.ints(0), b.ints(-1))
    differs = b.Not(b.Equal(b.Slice(ordered, b.ints(1), b.ints(END)), before))
    if dtype.is_float:  # NaNs are sorted last and count as equal
        differs = b.And(differs, b.Not(b.IsNaN(before)))
    is_first = b.Slice(b.Concat(b.const([True]), differs, axis=0), b.ints(0), n)
    per_group = Value("", Fact(I64, (outs[0].tensor.dims[0],)))
    positions = b.Compress(order, is_first, axis=0, like=per_group)
    groups = b.Sub(b.CumSum(b.Cast(is_first, to=I64.onnx), b.const(0, I64)), b.const(1, I64))
    # The group number of each element, scattered back to its position before the sort.
    inverse = b.ScatterElements(order, order, groups)
    counts = _counts(b, is_first, n, per_group)
    if not node.attrs["sorted"]:
        # Not sorted: groups in the order of their first elements.
        positions, permutation = b.node(
            "TopK", positions, b.Shape(positions), largest=0, outputs=2
        ).outputs
        counts = b.Gather(counts, permutation)
        counted = b.Range(b.const(0, I64), b.Size(permutation), b.const(1, I64))
        inverse = b.Gather(b.ScatterElements(permutation, permutation, counted), inverse)
    made = (b.Gather(flat, positions), positions, inverse, counts)
    for value, out in zip(made, outs, strict=False):
        value.fact = out.tensor.plain()
    return made


def _counts(b: Builder, is_first: Value, n: Value, like: Value) -> Value:
    """The number of elements of each group: the distance between first elements."""
    counted = b.Range(b.const(0, I64), b.Squeeze(n), b.const(1, I64))
    starts = b.Compress(counted, is_first, axis=0, like=like)
    ends = b.Concat(b.Slice(starts, b.ints(1), b.ints(END)), n, axis=0)
    return b.Sub(b.Slice(ends, b.ints(0), b.Shape(starts)), starts)


def max_unpool(b: Builder, node: Node) -> tuple[Value, ...]:
    """MaxUnpool: scatter the elements into zeros."""
    x, indices, out = given(node, 0), given(node, 1), node.outputs[0]
    ranked(x, indices, out)
    default_shape = unpooled_shape(x.tensor.dims, node.attrs)
    need(optional(node, 2) is None or out.tensor.dims == default_shape, "the output is larger")
    whole = Fact(I64, (1,), None, (product(default_shape),))
    zero = b.const(np.zeros((), x.tensor.dtype.np))
    empty = b.Expand(zero, b.Sizes(domain=INTERNAL, fact=whole))
    positions = b.Reshape(indices, b.ints(-1))
    # MaxUnpool has no negative indices: they are moved further out, so that the scatter fails.
    before = b.Sub(positions, b.Sizes(domain=INTERNAL, fact=whole))
    positions = b.Where(b.Less(positions, b.const(0, I64)), before, positions)
    flat = b.ScatterElements(empty, positions, b.Reshape(x, b.ints(-1)))
    shape = b.Sizes(domain=INTERNAL, fact=Fact(I64, (len(default_shape),), None, default_shape))
    return (b.Reshape(flat, shape, allowzero=1, like=out),)


def deform_conv(b: Builder, node: Node) -> tuple[Value, ...]:
    """DeformConv: im2col with sampled taps (DeformColumns), then a matmul per group."""
    x, w, out = given(node, 0), given(node, 1), node.outputs[0]
    offset, bias, mask = given(node, 2), optional(node, 3), optional(node, 4)
    ranked(*[v for v in (*node.inputs, out) if v is not None])
    shape, attrs = present(w.tensor.static, "the weights have symbolic sizes"), node.attrs
    need(x.tensor.dtype is F32, "not float32")
    need(0 not in shape and len(shape) <= 5, "the weights are empty, or have too many dims")
    geometry = {k: v for k, v in attrs.items() if k != "group"}
    geometry["kernel_shape"] = shape[2:]
    columns = b.DeformColumns(x, offset, mask, domain=INTERNAL, **geometry)
    group, depth = attrs["group"], math.prod(shape[1:])
    # [batch, group, channels * taps, pixels].
    grouped = b.Reshape(columns, b.ints(0, group, depth, -1))
    y = b.MatMul(b.Reshape(w, b.ints(group, shape[0] // group, depth)), grouped)
    sizes = b.Sizes(domain=INTERNAL, fact=Fact(I64, (len(shape),), None, out.tensor.dims))
    y = b.Reshape(y, sizes, allowzero=1, like=out)
    if bias is not None:
        y = b.Add(y, b.Reshape(bias, b.ints(shape[0], *((1,) * (len(shape) - 2)))))
    return (y,)

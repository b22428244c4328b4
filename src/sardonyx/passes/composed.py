"""Ops that are made of others which have kernels."""

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
from sardonyx.ops.pooling.standard import unpooled
from sardonyx.passes.rule import need, ranked

END: Final = (1 << 63) - 1
_SORTED: Final = frozenset((F32, F64, F16, BF16, I8, U8, I16, U16, I32, U32, I64, U64))


def unique(b: Builder, node: Node) -> tuple[Value, ...]:
    """Sorted elements, those that differ from the one before, and where they came from."""
    x, outs = given(node, 0), node.outputs
    ranked(x)
    axis, dtype = node.attrs["axis"], x.tensor.dtype
    need(dtype in _SORTED and (axis is None or x.tensor.rank == 1), "no order among these")
    flat = x if x.tensor.rank == 1 else b.Reshape(x, b.ints(-1))
    n = b.Shape(flat)
    ordered, order = b.TopK(flat, n, largest=0, outputs=2)
    before = b.Slice(ordered, b.ints(0), b.ints(-1))
    differs = b.Not(b.Equal(b.Slice(ordered, b.ints(1), b.ints(END)), before))
    if dtype.is_float:  # NaNs come last, and are all alike
        differs = b.And(differs, b.Not(b.IsNaN(before)))
    firsts = b.Slice(b.Concat(b.const([True]), differs, axis=0), b.ints(0), n)
    one_each = Value("", Fact(I64, (outs[0].tensor.dims[0],)))
    places = b.Compress(order, firsts, axis=0, like=one_each)
    kinds = b.Sub(b.CumSum(b.Cast(firsts, to=I64.onnx), b.const(0, I64)), b.const(1, I64))
    inverse = b.ScatterElements(order, order, kinds)
    counts = _counts(b, firsts, n, one_each)
    if not node.attrs["sorted"]:
        places, turn = b.TopK(places, b.Shape(places), largest=0, outputs=2)
        counts = b.Gather(counts, turn)
        counted = b.Range(b.const(0, I64), b.Size(turn), b.const(1, I64))
        inverse = b.Gather(b.ScatterElements(turn, turn, counted), inverse)
    made = (b.Gather(flat, places), places, inverse, counts)
    for value, out in zip(made, outs, strict=False):
        value.fact = out.tensor.plain()
    return made


def _counts(b: Builder, firsts: Value, n: Value, like: Value) -> Value:
    """How far it is from each first one to the next."""
    counted = b.Range(b.const(0, I64), b.Squeeze(n), b.const(1, I64))
    starts = b.Compress(counted, firsts, axis=0, like=like)
    ends = b.Concat(b.Slice(starts, b.ints(1), b.ints(END)), n, axis=0)
    made: Value = b.Sub(b.Slice(ends, b.ints(0), b.Shape(starts)), starts)
    return made


def max_unpool(b: Builder, node: Node) -> tuple[Value, ...]:
    """Zeros, with elements at their places."""
    x, indices, out = given(node, 0), given(node, 1), node.outputs[0]
    ranked(x, indices, out)
    natural = unpooled(x.tensor.dims, node.attrs)
    need(optional(node, 2) is None or out.tensor.dims == natural, "the output is larger")
    whole = Fact(I64, (1,), None, (product(natural),))
    zero = b.const(np.zeros((), x.tensor.dtype.np))
    empty = b.Expand(zero, b.Sizes(domain=INTERNAL, fact=whole))
    places = b.Reshape(indices, b.ints(-1))
    # Here no place counts from the end; one that does is made to lie outside.
    before = b.Sub(places, b.Sizes(domain=INTERNAL, fact=whole))
    places = b.Where(b.Less(places, b.const(0, I64)), before, places)
    flat = b.ScatterElements(empty, places, b.Reshape(x, b.ints(-1)))
    shape = b.Sizes(domain=INTERNAL, fact=Fact(I64, (len(natural),), None, natural))
    return (b.Reshape(flat, shape, allowzero=1, like=out),)


def deform_conv(b: Builder, node: Node) -> tuple[Value, ...]:
    """What the taps read, as columns, and a product of matrices."""
    x, w, out = given(node, 0), given(node, 1), node.outputs[0]
    offset, bias, mask = given(node, 2), optional(node, 3), optional(node, 4)
    ranked(*[v for v in (*node.inputs, out) if v is not None])
    shape, attrs = w.tensor.static, node.attrs
    need(x.tensor.dtype is F32 and shape is not None, "not float32, or of open size")
    assert shape is not None
    need(0 not in shape and len(shape) <= 5, "no weights, or too many dims")
    geometry = {k: v for k, v in attrs.items() if k != "group"}
    geometry["kernel_shape"] = shape[2:]
    columns = b.DeformColumns(x, offset, mask, domain=INTERNAL, **geometry)
    group, depth = attrs["group"], math.prod(shape[1:])
    grouped = b.Reshape(columns, b.ints(0, group, depth, -1))
    y = b.MatMul(b.Reshape(w, b.ints(group, shape[0] // group, depth)), grouped)
    sizes = b.Sizes(domain=INTERNAL, fact=Fact(I64, (len(shape),), None, out.tensor.dims))
    y = b.Reshape(y, sizes, allowzero=1, like=out)
    if bias is not None:
        y = b.Add(y, b.Reshape(bias, b.ints(shape[0], *((1,) * (len(shape) - 2)))))
    return (y,)

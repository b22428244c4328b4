"""What ops over hyper-connections are made of."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.ops.builder import Builder
from sardonyx.passes.microsoft import Made, all_ranked, like
from sardonyx.passes.rule import need


def _float(b: Builder, x: Value) -> Value:
    """A value in the type that sums are made in."""
    if x.tensor.dtype is F32:
        return x
    made: Value = b.Cast(x, to=F32.onnx)
    return made


def _streams(b: Builder, node: Node) -> tuple[Value, int, int]:
    """The streams of a node in an axis of their own; their number and size."""
    all_ranked(node)
    x, branches = given(node, 0), node.attrs["num_branches"]
    last = x.tensor.dims[-1]
    count = branches or x.tensor.dims[-2]
    need(isinstance(last, int) and isinstance(count, int), "the sizes of streams are open")
    assert isinstance(last, int)
    assert isinstance(count, int)
    if not branches:
        return _float(b, x), count, last
    shape = b.Concat(b.Shape(x, end=-1), b.ints(count, last // count), axis=0)
    return b.Reshape(_float(b, x), shape), count, last // count


def _back(b: Builder, y: Value, x: Value) -> Value:
    """A result in the shape and type of what it is made of."""
    made: Value = y
    if y.tensor.rank != x.tensor.rank:
        made = b.Reshape(y, b.Shape(x), allowzero=1)
    return like(b, made, x)


def branch_norm(b: Builder, node: Node) -> Made:
    """BranchwiseRMSNorm."""
    streams, count, size = _streams(b, node)
    scale, x = optional(node, 1), given(node, 0)
    ones = b.const(np.ones(size), F32)
    y = b.RMSNormalization(streams, ones, epsilon=node.attrs["epsilon"])
    if scale is not None:
        elements = scale.tensor.dims
        need(all(isinstance(d, int) for d in elements), "the size of the scale is open")
        is_one = len(elements) == 1 and elements[0] == size
        shape = b.ints(size) if is_one else b.ints(count, size)
        y = b.Mul(y, b.Reshape(_float(b, scale), shape))
    return (_back(b, y, x),)


def _stream_gates(b: Builder, gates: Value, streams: Value, count: int) -> Value:
    """Gates that broadcast over streams."""
    if gates.tensor.rank == streams.tensor.rank:
        return _float(b, gates)
    last = gates.tensor.dims[-1]
    need(isinstance(last, int), "the number of gates is open")
    made: Value = b.Unsqueeze(_float(b, gates), b.ints(-1))
    return made if last == count else b.Reshape(made, b.Shape(streams), allowzero=1)


def pre_mix(b: Builder, node: Node) -> Made:
    """HyperConnectionPreMix."""
    streams, count, _ = _streams(b, node)
    gates = _stream_gates(b, given(node, 1), streams, count)
    y = b.ReduceSum(b.Mul(streams, gates), b.ints(-2), keepdims=0)
    factor = b.const(node.attrs["reduction_scale"], F32)
    return (like(b, b.Mul(y, factor), given(node, 0)),)


def post_mix(b: Builder, node: Node) -> Made:
    """HyperConnectionPostMix."""
    streams, count, _ = _streams(b, node)
    gates = _stream_gates(b, given(node, 2), streams, count)
    mix, y = optional(node, 3), streams
    if mix is not None:
        rank = mix.tensor.rank
        y = b.MatMul(b.Transpose(_float(b, mix), perm=(*range(rank - 2), rank - 1, rank - 2)), y)
    y = b.Add(y, b.Mul(gates, b.Unsqueeze(_float(b, given(node, 1)), b.ints(-2))))
    return (_back(b, y, given(node, 0)),)


def engram(b: Builder, node: Node) -> Made:
    """EngramGate."""
    all_ranked(node)
    key, query, value, *scales = (given(node, i) for i in range(5))
    size = key.tensor.dims[3]
    need(isinstance(size, int) and size > 0, "the number of features is open, or 0")
    assert isinstance(size, int)
    ones, epsilon = b.const(np.ones(size), F32), node.attrs["epsilon"]
    k, q = (
        b.Mul(b.RMSNormalization(_float(b, x), ones, epsilon=epsilon), _float(b, scale))
        for x, scale in zip((key, query), scales, strict=True)
    )
    dot = b.ReduceSum(b.Mul(k, q), b.ints(-1), keepdims=1)
    dot = b.Mul(dot, b.const(1 / math.sqrt(size), F32))
    root = b.Sqrt(b.Max(b.Abs(dot), b.const(1e-6, F32)))
    gate = b.Sigmoid(b.Mul(b.Sign(dot), root))
    y = b.Mul(gate, b.Unsqueeze(_float(b, value), b.ints(2)))
    last, normed = optional(node, 5), None
    if last is not None:
        normed = b.Mul(b.RMSNormalization(y, ones, epsilon=epsilon), _float(b, last))
        normed = like(b, normed, key)
    return like(b, y, key), normed

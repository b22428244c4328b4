"""Decompositions of ops over hyper-connections: several residual streams that are mixed.

Streams are [.., streams, size], or side by side in the last axis if `num_branches` is set.
"""

from __future__ import annotations

import math

import numpy as np

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.ops.builder import Builder
from sardonyx.passes.microsoft import Outputs, all_ranked, like
from sardonyx.passes.rule import known_size, need


def _float32(b: Builder, x: Value) -> Value:
    """A value in float32, the type of the accumulators."""
    if x.tensor.dtype is F32:
        return x
    return b.Cast(x, to=F32.onnx)


def _streams(b: Builder, node: Node) -> tuple[Value, int, int]:
    """The streams of a node with an axis of their own; their number and size."""
    all_ranked(node)
    x, branches = given(node, 0), node.attrs["num_branches"]
    last = known_size(x.tensor.dims[-1], "the size of streams is unknown")
    # The streams have an axis of their own already.
    if not branches:
        count = known_size(x.tensor.dims[-2], "the number of streams is unknown")
        return _float32(b, x), count, last
    size = last // branches
    shape = b.Concat(b.Shape(x, end=-1), b.ints(branches, size), axis=0)
    return b.Reshape(_float32(b, x), shape), branches, size


def _shaped_like(b: Builder, y: Value, x: Value) -> Value:
    """A result in the shape and type of the input."""
    made: Value = y
    # Side by side again, if they were.
    if y.tensor.rank != x.tensor.rank:
        made = b.Reshape(y, b.Shape(x), allowzero=1)
    return like(b, made, x)


def branch_norm(b: Builder, node: Node) -> Outputs:
    """BranchwiseRMSNorm: each stream is normalized by itself."""
    streams, count, size = _streams(b, node)
    scale, x = optional(node, 1), given(node, 0)
    ones = b.const(np.ones(size), F32)
    y = b.RMSNormalization(streams, ones, epsilon=node.attrs["epsilon"])
    if scale is not None:
        elements = scale.tensor.dims
        need(all(isinstance(d, int) for d in elements), "the size of the scale is unknown")
        # The scale is for one stream, or has one row per stream.
        is_shared = len(elements) == 1 and elements[0] == size
        shape = b.ints(size) if is_shared else b.ints(count, size)
        y = b.Mul(y, b.Reshape(_float32(b, scale), shape))
    return (_shaped_like(b, y, x),)


def _stream_gates(b: Builder, gates: Value, streams: Value, count: int) -> Value:
    """Gates in a shape that broadcasts over streams."""
    # One gate per element, with the axes of the streams.
    if gates.tensor.rank == streams.tensor.rank:
        return _float32(b, gates)
    last = gates.tensor.dims[-1]
    need(isinstance(last, int), "the number of gates is unknown")
    made: Value = b.Unsqueeze(_float32(b, gates), b.ints(-1))
    return made if last == count else b.Reshape(made, b.Shape(streams), allowzero=1)


def pre_mix(b: Builder, node: Node) -> Outputs:
    """HyperConnectionPreMix: the gated sum of the streams."""
    streams, count, _ = _streams(b, node)
    gates = _stream_gates(b, given(node, 1), streams, count)
    y = b.ReduceSum(b.Mul(streams, gates), b.ints(-2), keepdims=0)
    factor = b.const(node.attrs["reduction_scale"], F32)
    return (like(b, b.Mul(y, factor), given(node, 0)),)


def post_mix(b: Builder, node: Node) -> Outputs:
    """HyperConnectionPostMix: streams mixed by a matrix, plus the gated new output."""
    streams, count, _ = _streams(b, node)
    gates = _stream_gates(b, given(node, 2), streams, count)
    mix, y = optional(node, 3), streams
    if mix is not None:
        rank = mix.tensor.rank
        # The matrix maps old streams (rows) to new ones (columns).
        y = b.MatMul(b.Transpose(_float32(b, mix), perm=(*range(rank - 2), rank - 1, rank - 2)), y)
    y = b.Add(y, b.Mul(gates, b.Unsqueeze(_float32(b, given(node, 1)), b.ints(-2))))
    return (_shaped_like(b, y, given(node, 0)),)


def engram(b: Builder, node: Node) -> Outputs:
    """EngramGate: a sigmoid gate from the similarity of key and query."""
    all_ranked(node)
    key, query, value, *scales = (given(node, i) for i in range(5))
    size = known_size(key.tensor.dims[3], "the number of features is unknown")
    need(size > 0, "there are no features")
    ones, epsilon = b.const(np.ones(size), F32), node.attrs["epsilon"]
    k, q = (
        b.Mul(b.RMSNormalization(_float32(b, x), ones, epsilon=epsilon), _float32(b, scale))
        for x, scale in zip((key, query), scales, strict=True)
    )
    # The scaled dot product of both normalized vectors.
    dot = b.ReduceSum(b.Mul(k, q), b.ints(-1), keepdims=1)
    dot = b.Mul(dot, b.const(1 / math.sqrt(size), F32))
    # sign(d) sqrt(|d|) compresses the similarity; the bound keeps the root from 0.
    root = b.Sqrt(b.Max(b.Abs(dot), b.const(1e-6, F32)))
    gate = b.Sigmoid(b.Mul(b.Sign(dot), root))
    y = b.Mul(gate, b.Unsqueeze(_float32(b, value), b.ints(2)))
    last, normed = optional(node, 5), None
    if last is not None:
        normed = b.Mul(b.RMSNormalization(y, ones, epsilon=epsilon), _float32(b, last))
        normed = like(b, normed, key)
    return like(b, y, key), normed

"""Hyper-connections: several residual streams (branches), normalized, mixed and gated."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array, float32, wide
from sardonyx.ops.attention.heads import same_dims, same_rank
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, known_size, need
from sardonyx.ops.elementwise.arithmetic import sigmoid

_FLOATS: Final = frozenset((F32, F16, BF16))
_EPSILON: Final = float32(1e-5)
_SCHEMA: Final[dict[str, Any]] = {"domain": MICROSOFT, "types": {"T": _FLOATS, "M": _FLOATS}}


def split_streams(g: Scope, x: Fact, branches: int) -> tuple[Shape, Size, Size]:
    """Return the leading axes, the number of streams, and the features of one."""
    if branches < 0:
        raise InvalidGraph(f"num_branches must not be negative, got {branches}")
    if not branches:
        if x.rank < 2:
            raise InvalidGraph(f"streams must be [..., branches, features], got {x}")
        return x.dims[:-2], x.dims[-2], x.dims[-1]
    if x.rank < 1:
        raise InvalidGraph(f"streams must be [..., branches * features], got {x}")
    g.divides(branches, x.dims[-1], "num_branches does not split the last dim")
    return x.dims[:-1], branches, x.dims[-1] // branches


def as_streams(x: Array, branches: int) -> Array:
    """Reshape to [..., branches, features] in float32."""
    stream_dims = (branches, x.shape[-1] // branches) if branches else x.shape[-1:]
    return wide(x).reshape(*x.shape[:-1], *stream_dims)


def _rms(x: Array, epsilon: float) -> Array:
    square = np.square(x).mean(axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(square + np.float32(epsilon)))


_NORM: Final = {"epsilon": _EPSILON, "num_branches": 0}
norm: Final = Op("BranchwiseRMSNorm", 1, "X:T scale:M?", "Y:T", attrs=_NORM, **_SCHEMA)


@norm.infer
def _(g: Scope, x: Fact, scale: Fact | None, *, epsilon: float, num_branches: int) -> Fact:
    _, branches, features = split_streams(g, x, num_branches)
    if scale is not None and scale.rank == 2:
        same_dims(g, scale.dims, (branches, features), "scale")
    elif scale is not None:
        same_rank(1, scale=scale)
    return x.without_contents()


@norm.reference
@np.errstate(all="ignore")
def _(x: Array, scale: Array | None = None, *, epsilon: float, num_branches: int) -> Array:
    streams = as_streams(x, num_branches)
    y = _rms(streams, epsilon)
    if scale is not None:
        features, all_of = streams.shape[-1], streams.shape[-2:]
        if scale.size not in (features, features * all_of[0]):
            raise InvalidArgument(f"scale has {scale.size} numbers for streams {list(all_of)}")
        y = y * (wide(scale) if scale.size == features else wide(scale).reshape(all_of))
    return np.asarray(y.reshape(x.shape).astype(x.dtype))


_MIX: Final = {"num_branches": 0, "reduction_scale": 1.0}
pre_mix: Final = Op(
    "HyperConnectionPreMix", 1, "streams:T pre_mix:M", "output:T", attrs=_MIX, **_SCHEMA
)


def _check_gates(g: Scope, gates: Fact, sizes: tuple[Shape, Size, Size], is_flat: bool) -> None:
    """Check gates: [..., branches] or [..., branches, 1 or features]; flat: also [..., all]."""
    lead, branches, features = sizes
    if gates.rank == len(lead) + 1:
        last = gates.dims[-1]
        is_each = last == branches or not is_flat
        expected = branches if is_each else branches * features
        same_dims(g, gates.dims, (*lead, expected), "the gates")
        return
    same_rank(len(lead) + 2, gates=gates)
    same_dims(g, gates.dims[:-1], (*lead, branches), "the gates")
    g.equal_or_one(gates.dims[-1], features, "the gates do not broadcast over the features")


def _gates(gates: Array, streams: Array) -> Array:
    """Reshape gates to broadcast over the streams."""
    wide_gates = wide(gates)
    if gates.ndim == streams.ndim:
        return wide_gates
    if gates.shape[-1] == streams.shape[-2]:
        return wide_gates[..., None]
    return wide_gates.reshape(streams.shape)


@pre_mix.infer
def _(g: Scope, x: Fact, gates: Fact, *, num_branches: int, reduction_scale: float) -> Fact:
    sizes = split_streams(g, x, num_branches)
    _check_gates(g, gates, sizes, bool(num_branches))
    return x.shaped((*sizes[0], sizes[2]))


@pre_mix.reference
@np.errstate(all="ignore")
def _(x: Array, gates: Array, *, num_branches: int, reduction_scale: float) -> Array:
    streams = as_streams(x, num_branches)
    y = (streams * _gates(gates, streams)).sum(axis=-2) * np.float32(reduction_scale)
    return np.asarray(y.astype(x.dtype))


post_mix: Final = Op(
    "HyperConnectionPostMix",
    1,
    "streams:T block_output:T post_mix:M stream_mix:M?",
    "output:T",
    attrs={"num_branches": 0},
    **_SCHEMA,
)


@post_mix.infer
def _(g: Scope, x: Fact, block: Fact, gates: Fact, mix: Fact | None, *, num_branches: int) -> Fact:
    sizes = split_streams(g, x, num_branches)
    lead, branches, features = sizes
    same_dims(g, block.dims, (*lead, features), "block_output")
    _check_gates(g, gates, sizes, is_flat=False)
    if mix is not None:
        same_dims(g, mix.dims, (*lead, branches, branches), "stream_mix")
    return x.without_contents()


@post_mix.reference
@np.errstate(all="ignore")
def _(
    x: Array, block: Array, gates: Array, mix: Array | None = None, *, num_branches: int
) -> Array:
    streams = as_streams(x, num_branches)
    y = streams if mix is None else np.matmul(wide(mix).swapaxes(-1, -2), streams)
    y = y + _gates(gates, streams) * wide(block)[..., None, :]
    return np.asarray(y.reshape(x.shape).astype(x.dtype))


engram: Final = Op(
    "EngramGate",
    1,
    "key:T query:T value:T key_norm_scale:T query_norm_scale:T conv_norm_scale:T?",
    "output:T gated_value_normed:T?",
    domain=MICROSOFT,
    attrs={"epsilon": _EPSILON},
    types={"T": _FLOATS},
)


@engram.infer
def _(g: Scope, key: Fact, query: Fact, value: Fact, *scales: Fact | None, **_: Any) -> Any:
    same_rank(4, key=key)
    batch, rows, streams, features = key.dims
    same_dims(g, query.dims, key.dims, "query")
    same_dims(g, value.dims, (batch, rows, features), "value")
    names = ("key_norm_scale", "query_norm_scale", "conv_norm_scale")
    for name, fact in zip(names, scales, strict=True):
        if fact is not None:
            same_dims(g, fact.dims, (streams, features), name)
    if scales[2] is None and g.n_outputs > 1:
        raise InvalidGraph("gated_value_normed needs conv_norm_scale")
    return key.without_contents(), key.without_contents()


@engram.reference
@np.errstate(all="ignore")
def _(*inputs: Any, epsilon: float) -> tuple[Array, ...]:
    key, query, value, key_scale, query_scale, scale = inputs
    k, q = (_rms(wide(x), epsilon) * wide(s) for x, s in ((key, key_scale), (query, query_scale)))
    dot = (k * q).sum(axis=-1, keepdims=True) / np.float32(np.sqrt(key.shape[3]))
    gate = sigmoid(np.sign(dot) * np.sqrt(np.maximum(np.abs(dot), np.float32(1e-6))))
    y = gate * wide(value)[:, :, None, :]
    if scale is None:
        return (y.astype(key.dtype),)
    return y.astype(key.dtype), (_rms(y, epsilon) * wide(scale)).astype(key.dtype)


def _split_streams(b: Builder, node: Node) -> tuple[Value, int, int]:
    """The streams of a node as [..., streams, features] in float32; their number and size."""
    x, branches = input_of(node, 0), node.attrs["num_branches"]
    last = known_size(x.tensor.dims[-1], "the size of streams is unknown")
    if not branches:  # the shape is [..., streams, features] already
        count = known_size(x.tensor.dims[-2], "the number of streams is unknown")
        return b.cast(x, F32), count, last
    size = last // branches
    shape = b.Concat(b.Shape(x, end=-1), b.ints(branches, size), axis=0)
    return b.Reshape(b.cast(x, F32), shape), branches, size


def _shaped_like(b: Builder, y: Value, x: Value) -> Value:
    """A result in the shape and type of the input."""
    if y.tensor.rank != x.tensor.rank:  # the streams were concatenated in the last axis
        y = b.Reshape(y, b.Shape(x), allowzero=1)
    return b.cast(y, x.tensor.dtype)


@norm.decompose
def _(b: Builder, node: Node) -> Outputs:
    """BranchwiseRMSNorm: each stream is normalized by itself."""
    streams, count, size = _split_streams(b, node)
    scale, x = optional_input(node, 1), input_of(node, 0)
    ones = b.const(np.ones(size), F32)
    y = b.RMSNormalization(streams, ones, epsilon=node.attrs["epsilon"])
    if scale is not None:
        elements = scale.tensor.dims
        need(all(isinstance(d, int) for d in elements), "the size of the scale is unknown")
        # The scale is for one stream, or has one row per stream.
        is_shared = len(elements) == 1 and elements[0] == size
        shape = b.ints(size) if is_shared else b.ints(count, size)
        y = b.Mul(y, b.Reshape(b.cast(scale, F32), shape))
    return (_shaped_like(b, y, x),)


def _stream_gates(b: Builder, gates: Value, streams: Value, count: int) -> Value:
    """Gates in a shape that broadcasts over streams."""
    # One gate per element, with the axes of the streams.
    if gates.tensor.rank == streams.tensor.rank:
        return b.cast(gates, F32)
    last = gates.tensor.dims[-1]
    need(isinstance(last, int), "the number of gates is unknown")
    column: Value = b.Unsqueeze(b.cast(gates, F32), b.ints(-1))
    return column if last == count else b.Reshape(column, b.Shape(streams), allowzero=1)


@pre_mix.decompose
def _(b: Builder, node: Node) -> Outputs:
    """HyperConnectionPreMix: the gated sum of the streams."""
    streams, count, _ = _split_streams(b, node)
    gates = _stream_gates(b, input_of(node, 1), streams, count)
    y = b.ReduceSum(b.Mul(streams, gates), b.ints(-2), keepdims=0)
    factor = b.const(node.attrs["reduction_scale"], F32)
    return (b.cast(b.Mul(y, factor), input_of(node, 0).tensor.dtype),)


@post_mix.decompose
def _(b: Builder, node: Node) -> Outputs:
    """HyperConnectionPostMix: streams mixed by a matrix, plus the gated new output."""
    streams, count, _ = _split_streams(b, node)
    gates = _stream_gates(b, input_of(node, 2), streams, count)
    mix, y = optional_input(node, 3), streams
    if mix is not None:
        rank = mix.tensor.rank
        # The matrix maps old streams (rows) to new ones (columns).
        y = b.MatMul(b.Transpose(b.cast(mix, F32), perm=(*range(rank - 2), rank - 1, rank - 2)), y)
    y = b.Add(y, b.Mul(gates, b.Unsqueeze(b.cast(input_of(node, 1), F32), b.ints(-2))))
    return (_shaped_like(b, y, input_of(node, 0)),)


@engram.decompose
def _(b: Builder, node: Node) -> Outputs:
    """EngramGate: a sigmoid gate from the similarity of key and query."""
    key, query, value, *scales = (input_of(node, i) for i in range(5))
    size = known_size(key.tensor.dims[3], "the number of features is unknown")
    need(size > 0, "there are no features")
    ones, epsilon = b.const(np.ones(size), F32), node.attrs["epsilon"]
    k, q = (
        b.Mul(b.RMSNormalization(b.cast(x, F32), ones, epsilon=epsilon), b.cast(scale, F32))
        for x, scale in zip((key, query), scales, strict=True)
    )
    # The scaled dot product of both normalized vectors.
    dot = b.ReduceSum(b.Mul(k, q), b.ints(-1), keepdims=1)
    dot = b.Mul(dot, b.const(1 / math.sqrt(size), F32))
    # sign(d) sqrt(|d|) compresses the similarity; the bound keeps the root from 0.
    root = b.Sqrt(b.Max(b.Abs(dot), b.const(1e-6, F32)))
    gate = b.Sigmoid(b.Mul(b.Sign(dot), root))
    y = b.Mul(gate, b.Unsqueeze(b.cast(value, F32), b.ints(2)))
    last, normed = optional_input(node, 5), None
    if last is not None:
        normed = b.Mul(b.RMSNormalization(y, ones, epsilon=epsilon), b.cast(last, F32))
        normed = b.cast(normed, key.tensor.dtype)
    return b.cast(y, key.tensor.dtype), normed


OPS: Final = (norm, pre_mix, post_mix, engram)

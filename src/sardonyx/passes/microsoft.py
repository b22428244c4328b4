"""What ops of com.microsoft without a kernel of their own are made of."""

from __future__ import annotations

import numpy as np

from sardonyx.graph.dtype import I32, I64, U32
from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.attention.rotary_contrib import heads_of, streams_of
from sardonyx.ops.builder import Builder
from sardonyx.ops.conv.fused import to_first, to_last
from sardonyx.ops.elementwise.fused_activation import SETTINGS
from sardonyx.passes.rule import need, ranked

Made = tuple[Value | None, ...]


def all_ranked(node: Node) -> None:
    ranked(*[v for v in node.inputs if v is not None])


def like(b: Builder, x: Value, other: Value) -> Value:
    """A value in the type of another."""
    if x.tensor.dtype is other.tensor.dtype:
        return x
    made: Value = b.Cast(x, to=other.tensor.dtype.onnx)
    return made


def _times(b: Builder, x: Value, factor: float) -> Value:
    made: Value = b.Mul(x, b.const(factor, x.tensor.dtype))
    return made


def activated(b: Builder, x: Value, node: Node) -> Value:
    """A value behind the activation of a fused product."""
    name = (node.attrs["activation"] or b"").decode("utf-8", "replace")
    if not name:
        return x
    need(x.tensor.dtype.is_float, "an activation of integers")
    values = {k: node.attrs[f"activation_{k}"] for k in SETTINGS[name]}
    if name == "ScaledTanh":
        return _times(b, b.Tanh(_times(b, x, values["beta"])), values["alpha"])
    if name == "ParametricSoftplus":
        return _times(b, b.Softplus(_times(b, x, values["beta"])), values["alpha"])
    need(name != "Clip", "bounds that the node has no attributes for")
    return b.node(name, x, **values).outputs[0]


def fused_gemm(b: Builder, node: Node) -> Made:
    """FusedGemm: the activation is a node of its own for an epilogue to take up."""
    all_ranked(node)
    rest = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    return (activated(b, b.Gemm(*node.inputs, **rest), node),)


def matmul_activation(b: Builder, node: Node) -> Made:
    """FusedMatMulActivation."""
    all_ranked(node)
    rest = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    return (activated(b, b.FusedMatMul(*node.inputs, domain=MICROSOFT, **rest), node),)


def nhwc_conv(b: Builder, node: Node) -> Made:
    """NhwcConv and NhwcFusedConv: the Transposes meet others, and are gone."""
    all_ranked(node)
    rank = given(node, 0).tensor.rank
    x, w, bias, z = (optional(node, i) for i in range(4))
    images = [None if v is None else b.Transpose(v, perm=to_first(rank)) for v in (x, z)]
    if node.op.name == "NhwcConv":
        y = b.Conv(images[0], w, bias, **node.attrs)
    else:
        y = b.FusedConv(images[0], w, bias, images[1], domain=MICROSOFT, **node.attrs)
    return (b.Transpose(y, perm=to_last(rank)),)


def group_norm(b: Builder, node: Node) -> Made:
    """GroupNorm and SkipGroupNorm."""
    all_ranked(node)
    x, gamma, beta = (given(node, i) for i in range(3))
    skip, bias = optional(node, 3), optional(node, 4)
    is_last = node.attrs["channels_last"]
    total = x
    if skip is not None:
        axes = b.ints(1, 2) if is_last else b.ints(2, 3)
        total = b.Add(x, b.Unsqueeze(skip, axes) if skip.tensor.rank == 2 else skip)
    if bias is not None:
        total = b.Add(total, bias if is_last else b.Unsqueeze(bias, b.ints(1, 2)))
    y: Value = b.Transpose(total, perm=to_first(4)) if is_last else total
    y = b.GroupNormalization(
        y,
        like(b, gamma, x),
        like(b, beta, x),
        num_groups=node.attrs["groups"],
        epsilon=node.attrs["epsilon"],
    )
    if node.attrs["activation"]:
        y = b.Mul(y, b.Sigmoid(y))
    if is_last:
        y = b.Transpose(y, perm=to_last(4))
    return y, None if skip is None else b.Identity(total)


def embed(b: Builder, node: Node) -> Made:
    """EmbedLayerNormalization."""
    all_ranked(node)
    ids, segment_ids, words, places, segments, gamma, beta, mask, where = (
        optional(node, i) for i in range(9)
    )
    assert ids is not None
    assert places is not None
    total = b.Gather(words, _unsigned(b, ids))
    if where is None:
        rows = b.Slice(places, b.ints(0), b.Shape(ids, start=1, end=2), b.ints(0))
    else:
        rows = b.Gather(places, _unsigned(b, where))
    total = b.Add(total, rows)
    if segment_ids is not None:
        total = b.Add(total, b.Gather(segments, _unsigned(b, segment_ids)))
    y = b.LayerNormalization(total, gamma, beta, epsilon=node.attrs["epsilon"])
    seen: Value | None = None
    if len(node.outputs) > 1 and node.outputs[1].is_used:
        shown = b.Equal(mask, b.const(1, I32)) if mask is not None else b.Less(ids, ids)
        seen = b.ReduceSum(b.Cast(shown, to=I32.onnx), b.ints(1), keepdims=0)
    return y, seen, b.Identity(total) if len(node.outputs) > 2 else None


def _unsigned(b: Builder, ids: Value) -> Value:
    """Ids of which negative ones are too large: a Gather would count them from the end."""
    made: Value = b.Cast(b.Cast(ids, to=U32.onnx), to=I64.onnx)
    return made


def cdist(b: Builder, node: Node) -> Made:
    """Squares of both, less twice their product: a matrix of differences would be too large."""
    all_ranked(node)
    left, right = given(node, 0), given(node, 1)
    squares = [b.ReduceSumSquare(x, b.ints(1), keepdims=1) for x in (left, right)]
    twice = b.FusedMatMul(left, right, domain=MICROSOFT, transB=1, alpha=-2.0)
    y = b.Relu(b.Add(b.Add(twice, squares[0]), b.Transpose(squares[1], perm=(1, 0))))
    return (b.Sqrt(y) if node.attrs["metric"] == b"euclidean" else y,)


def unfold(b: Builder, node: Node) -> Made:
    """UnfoldTensor: slices that overlap are gathered by where they begin."""
    all_ranked(node)
    x, size = given(node, 0), node.attrs["size"]
    rank = x.tensor.rank
    axis = node.attrs["dim"] % rank
    length = x.tensor.dims[axis]
    need(isinstance(length, int), "the number of slices is open")
    assert isinstance(length, int)
    firsts = np.arange(0, length - size + 1, node.attrs["step"])
    slices = b.Gather(x, b.const(firsts[:, None] + np.arange(size), I64), axis=axis)
    order = [i for i in range(rank + 1) if i != axis + 1]
    return (b.Transpose(slices, perm=(*order, axis + 1)),)


def late_pads(b: Builder, node: Node) -> Made:
    """ConvTransposeWithDynamicPads whose pads are known after all."""
    x, w, pads, bias = (optional(node, i) for i in range(4))
    known = None if pads is None else pads.tensor.ints
    need(pads is None or known is not None, "the pads are not known")
    return (b.ConvTranspose(x, w, bias, pads=known, **node.attrs),)


def causal_conv(b: Builder, node: Node) -> Made:
    """CausalConvWithState, the standard one too: what was before, a convolution, what is kept."""
    all_ranked(node)
    x, w = given(node, 0), given(node, 1)
    bias, past = optional(node, 2), optional(node, 3)
    attrs = {"channels_last": 0, "dilation": 1, "state_window": 0, **node.attrs}
    need(not attrs["state_window"], "states of several tokens")
    need(not attrs["channels_last"] or x.tensor.rank == 3, "channels in several axes")
    channels, taps = w.tensor.dims[0], w.tensor.dims[2]
    need(isinstance(channels, int) and isinstance(taps, int), "the weights' sizes are open")
    assert isinstance(channels, int)
    assert isinstance(taps, int)
    kept = (taps - 1) * attrs["dilation"]
    line: Value = x
    axis = 1 if attrs["channels_last"] else 2
    if past is None:
        before = [0, 0, 0, 0, 0, 0]
        before[axis] = kept
        line = b.Pad(x, b.ints(*before))
    elif kept:
        line = b.Concat(past, x, axis=axis)
    images = b.Transpose(line, perm=(0, 2, 1)) if attrs["channels_last"] else line
    y = b.Conv(images, w, bias, group=channels, dilations=(attrs["dilation"],))
    if attrs["activation"] != b"none":
        y = b.Mul(y, b.Sigmoid(y))
    if attrs["channels_last"]:
        y = b.Transpose(y, perm=(0, 2, 1))
    length = b.Shape(x, start=axis, end=axis + 1)
    ends = b.ints(np.iinfo(np.int64).max)
    return y, b.Slice(line, length, ends, b.ints(axis))


def multi_rotary(b: Builder, node: Node) -> Made:
    """MRotaryEmbedding: columns of the caches by the position that they follow, then as ever."""
    all_ranked(node)
    x, ids, *caches = (given(node, i) for i in range(4))
    streams = streams_of(node.attrs)
    order = np.argsort(streams, kind="stable")
    is_wrong = b.Less(ids, b.const(0, I64))  # a Gather would count them from the end
    three = b.Split(b.Where(is_wrong, b.const(1 << 62, I64), ids), b.ints(1, 1, 1), outputs=3)
    angles = []
    for cache in caches:
        parts = []
        for stream, where in enumerate(three):
            columns = np.flatnonzero(streams == stream)
            if columns.size:
                table = b.Gather(cache, b.const(columns, I64), axis=1)
                parts.append(b.Gather(table, b.Squeeze(where, b.ints(0))))
        whole = b.Concat(*parts, axis=2)
        if (order != np.arange(len(order))).any():
            whole = b.Gather(whole, b.const(np.argsort(order), I64), axis=2)
        angles.append(whole)
    heads = None
    if x.tensor.rank == 3:
        heads = heads_of(x.tensor.dims[2], caches[0].tensor.dims[1], node.attrs)
        need(isinstance(heads, int), "the number of heads is open")
    width, interleaved = 2 * len(streams), node.attrs["interleaved"]
    made = b.RotaryEmbedding(
        x, *angles, num_heads=heads, interleaved=interleaved, rotary_embedding_dim=width
    )
    return (made,)

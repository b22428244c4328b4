"""Decompositions of com.microsoft ops without a kernel of their own into standard ops."""

from __future__ import annotations

import numpy as np

from sardonyx.graph.dtype import I32, I64, U32
from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.attention.rotary_contrib import mrope_streams, packed_heads
from sardonyx.ops.builder import Builder
from sardonyx.ops.conv.fused import to_channels_first, to_channels_last
from sardonyx.ops.elementwise.fused_activation import ACTIVATION_ATTRS
from sardonyx.passes.rule import known_size, need, ranked

# None for outputs that are not computed.
Outputs = tuple[Value | None, ...]


def all_ranked(node: Node) -> None:
    """Abandon a decomposition unless the ranks of all inputs are known."""
    ranked(*[v for v in node.inputs if v is not None])


def like(b: Builder, x: Value, other: Value) -> Value:
    """A value cast to the type of another."""
    if x.tensor.dtype is other.tensor.dtype:
        return x
    return b.Cast(x, to=other.tensor.dtype.onnx)


def _times(b: Builder, x: Value, factor: float) -> Value:
    """A value multiplied by a number."""
    return b.Mul(x, b.const(factor, x.tensor.dtype))


def activated(b: Builder, x: Value, node: Node) -> Value:
    """A value after the activation of a fused op."""
    name = (node.attrs["activation"] or b"").decode("utf-8", "replace")
    if not name:
        return x
    need(x.tensor.dtype.is_float, "an activation of integers")
    values = {k: node.attrs[f"activation_{k}"] for k in ACTIVATION_ATTRS[name]}
    # alpha * f(beta * x): no standard ops.
    if name == "ScaledTanh":
        return _times(b, b.Tanh(_times(b, x, values["beta"])), values["alpha"])
    if name == "ParametricSoftplus":
        return _times(b, b.Softplus(_times(b, x, values["beta"])), values["alpha"])
    need(name != "Clip", "bounds that the node has no attributes for")
    return b.node(name, x, **values).outputs[0]


def fused_gemm(b: Builder, node: Node) -> Outputs:
    """FusedGemm: the activation becomes a node, which fuses into the epilogue later."""
    all_ranked(node)
    rest = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    return (activated(b, b.Gemm(*node.inputs, **rest), node),)


def matmul_activation(b: Builder, node: Node) -> Outputs:
    """FusedMatMulActivation."""
    all_ranked(node)
    rest = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    return (activated(b, b.FusedMatMul(*node.inputs, domain=MICROSOFT, **rest), node),)


def nhwc_conv(b: Builder, node: Node) -> Outputs:
    """NhwcConv and NhwcFusedConv: layout propagation removes the Transposes again."""
    all_ranked(node)
    rank = given(node, 0).tensor.rank
    x, w, bias, z = (optional(node, i) for i in range(4))
    images = [None if v is None else b.Transpose(v, perm=to_channels_first(rank)) for v in (x, z)]
    if node.op.name == "NhwcConv":
        y = b.Conv(images[0], w, bias, **node.attrs)
    else:
        y = b.FusedConv(images[0], w, bias, images[1], domain=MICROSOFT, **node.attrs)
    return (b.Transpose(y, perm=to_channels_last(rank)),)


def group_norm(b: Builder, node: Node) -> Outputs:
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
    # The standard GroupNormalization is NCHW.
    y: Value = b.Transpose(total, perm=to_channels_first(4)) if is_last else total
    y = b.GroupNormalization(
        y,
        like(b, gamma, x),
        like(b, beta, x),
        num_groups=node.attrs["groups"],
        epsilon=node.attrs["epsilon"],
    )
    # SiLU: y * sigmoid(y).
    if node.attrs["activation"]:
        y = b.Mul(y, b.Sigmoid(y))
    if is_last:
        y = b.Transpose(y, perm=to_channels_last(4))
    return y, None if skip is None else b.Identity(total)


def embed(b: Builder, node: Node) -> Outputs:
    """EmbedLayerNormalization: the sum of word, position and segment embeddings."""
    all_ranked(node)
    ids, segment_ids, words, position_table, segments, gamma, beta, mask, positions = (
        optional(node, i) for i in range(9)
    )
    ids, position_table = given(node, 0), given(node, 3)
    total = b.Gather(words, _unsigned(b, ids))
    if positions is None:
        # Without position ids the positions are 0, 1, 2, ...
        rows = b.Slice(position_table, b.ints(0), b.Shape(ids, start=1, end=2), b.ints(0))
    else:
        rows = b.Gather(position_table, _unsigned(b, positions))
    total = b.Add(total, rows)
    if segment_ids is not None:
        total = b.Add(total, b.Gather(segments, _unsigned(b, segment_ids)))
    y = b.LayerNormalization(total, gamma, beta, epsilon=node.attrs["epsilon"])
    seen: Value | None = None
    if len(node.outputs) > 1 and node.outputs[1].is_used:
        # The second output counts the unmasked tokens; without a mask it is 0.
        shown = b.Equal(mask, b.const(1, I32)) if mask is not None else b.Less(ids, ids)
        seen = b.ReduceSum(b.Cast(shown, to=I32.onnx), b.ints(1), keepdims=0)
    return y, seen, b.Identity(total) if len(node.outputs) > 2 else None


def _unsigned(b: Builder, ids: Value) -> Value:
    """Ids with negative ones made out of range: Gather would count them from the end."""
    return b.Cast(b.Cast(ids, to=U32.onnx), to=I64.onnx)


def cdist(b: Builder, node: Node) -> Outputs:
    """CDist: |a|^2 - 2 a b + |b|^2, since all differences would need too much memory."""
    all_ranked(node)
    left, right = given(node, 0), given(node, 1)
    squares = [b.ReduceSumSquare(x, b.ints(1), keepdims=1) for x in (left, right)]
    twice = b.FusedMatMul(left, right, domain=MICROSOFT, transB=1, alpha=-2.0)
    # Rounding can make the distance of equal points negative.
    y = b.Relu(b.Add(b.Add(twice, squares[0]), b.Transpose(squares[1], perm=(1, 0))))
    return (b.Sqrt(y) if node.attrs["metric"] == b"euclidean" else y,)


def unfold(b: Builder, node: Node) -> Outputs:
    """UnfoldTensor: overlapping slices, gathered by their start positions."""
    all_ranked(node)
    x, size = given(node, 0), node.attrs["size"]
    rank = x.tensor.rank
    axis = node.attrs["dim"] % rank
    length = known_size(x.tensor.dims[axis], "the number of slices is unknown")
    starts = np.arange(0, length - size + 1, node.attrs["step"])
    # Row i has the positions of the i-th slice.
    slices = b.Gather(x, b.const(starts[:, None] + np.arange(size), I64), axis=axis)
    order = [i for i in range(rank + 1) if i != axis + 1]
    return (b.Transpose(slices, perm=(*order, axis + 1)),)


def late_pads(b: Builder, node: Node) -> Outputs:
    """ConvTransposeWithDynamicPads with pads that are known."""
    x, w, pads, bias = (optional(node, i) for i in range(4))
    known = None if pads is None else pads.tensor.ints
    need(pads is None or known is not None, "the pads are not known")
    return (b.ConvTranspose(x, w, bias, pads=known, **node.attrs),)


def causal_conv(b: Builder, node: Node) -> Outputs:
    """CausalConvWithState, standard or com.microsoft: the state, a Conv, the new state."""
    all_ranked(node)
    x, w = given(node, 0), given(node, 1)
    bias, past = optional(node, 2), optional(node, 3)
    attrs = {"channels_last": 0, "dilation": 1, "state_window": 0, **node.attrs}
    need(not attrs["state_window"], "the state has a window")
    need(
        not attrs["channels_last"] or x.tensor.rank == 3, "channels-last with several spatial axes"
    )
    channels, taps = (
        known_size(w.tensor.dims[i], "the weights have symbolic sizes") for i in (0, 2)
    )
    # The state has the inputs that the first taps of the next call still read.
    n_state = (taps - 1) * attrs["dilation"]
    padded: Value = x
    axis = 1 if attrs["channels_last"] else 2
    # Causal padding: zeros before the first input, none after the last.
    if past is None:
        before = [0, 0, 0, 0, 0, 0]
        before[axis] = n_state
        padded = b.Pad(x, b.ints(*before))
    elif n_state:
        padded = b.Concat(past, x, axis=axis)
    images = b.Transpose(padded, perm=(0, 2, 1)) if attrs["channels_last"] else padded
    y = b.Conv(images, w, bias, group=channels, dilations=(attrs["dilation"],))
    if attrs["activation"] != b"none":
        y = b.Mul(y, b.Sigmoid(y))
    if attrs["channels_last"]:
        y = b.Transpose(y, perm=(0, 2, 1))
    length = b.Shape(x, start=axis, end=axis + 1)
    ends = b.ints(np.iinfo(np.int64).max)
    return y, b.Slice(padded, length, ends, b.ints(axis))


def multi_rotary(b: Builder, node: Node) -> Outputs:
    """MRotaryEmbedding: each column of the caches follows one of three position ids."""
    all_ranked(node)
    x, ids, *caches = (given(node, i) for i in range(4))
    streams = mrope_streams(node.attrs)
    # Columns are gathered per position stream and concatenated: undone by the inverse permutation.
    order = np.argsort(streams, kind="stable")
    # Negative ids are made out of range: Gather would count them from the end.
    ids = b.Where(b.Less(ids, b.const(0, I64)), b.const(1 << 62, I64), ids)
    three = b.node("Split", ids, b.ints(1, 1, 1), outputs=3).outputs
    angles = []
    for cache in caches:
        parts = []
        for stream, positions in enumerate(three):
            columns = np.flatnonzero(streams == stream)
            if columns.size:
                table = b.Gather(cache, b.const(columns, I64), axis=1)
                parts.append(b.Gather(table, b.Squeeze(positions, b.ints(0))))
        whole = b.Concat(*parts, axis=2)
        if (order != np.arange(len(order))).any():
            whole = b.Gather(whole, b.const(np.argsort(order), I64), axis=2)
        angles.append(whole)
    heads = None
    if x.tensor.rank == 3:
        heads = packed_heads(x.tensor.dims[2], caches[0].tensor.dims[1], node.attrs)
        need(isinstance(heads, int), "the number of heads is unknown")
    width, interleaved = 2 * len(streams), node.attrs["interleaved"]
    made = b.RotaryEmbedding(
        x, *angles, num_heads=heads, interleaved=interleaved, rotary_embedding_dim=width
    )
    return (made,)

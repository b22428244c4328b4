"""RotaryEmbedding (RoPE) of ONNX and com.microsoft, and M-RoPE (three positions per token).

Pairs of features are rotated by an angle that depends on the position.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, contrib_op, optional, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.attention.heads import heads_of, merge_heads, same_dims, same_rank, split_heads
from sardonyx.ops.attention.kv_cache import check_positions, rotated, rotated_pairs
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, need

MAX_PAIRS: Final = 1 << 16  # pairs of features in a head
_TYPES: Final = {"T": frozenset((F32, F16, BF16)), "M": frozenset((I64,))}

rotary: Final = Op(
    "RotaryEmbedding",
    23,
    "X:T cos_cache:T sin_cache:T position_ids:M?",
    "Y:T",
    attrs={"interleaved": 0, "num_heads": optional("int"), "rotary_embedding_dim": 0},
    types=_TYPES,
)


@rotary.infer
def _(g: Scope, x: Fact, cos: Fact, sin: Fact, ids: Fact | None, **attrs: Any) -> Fact:
    if x.rank == 3:
        batch, length, hidden = x.dims
        _, head = heads_of(g, attrs["num_heads"], hidden, "num_heads")
    elif x.rank == 4:
        batch, _, length, head = x.dims
    else:
        raise InvalidGraph(f"X must have rank 3 or 4, got {x}")
    width = _rotary_width(g, attrs["rotary_embedding_dim"], head)
    if ids is None:
        same_rank(3, cos_cache=cos, sin_cache=sin)
        expected = (batch, length, cos.dims[2])
        same_dims(g, cos.dims, expected, "cos_cache without position_ids")
    else:
        same_rank(2, cos_cache=cos, sin_cache=sin, position_ids=ids)
        same_dims(g, ids.dims, (batch, length), "position_ids")
    same_dims(g, sin.dims, cos.dims, "sin_cache")
    g.equal(cos.dims[-1] * 2, width, "the caches hold another number of angles than X needs")
    return x.without_contents()


def _rotary_width(g: Scope, width: int, head: Size) -> Size:
    """Return the number of features of a head that are rotated."""
    if width < 0:
        raise InvalidGraph(f"rotary_embedding_dim {width} is negative")
    if not width:
        g.divides(2, head, "features are rotated in pairs, and the head has an odd number")
        return head
    g.at_least(head, width, "rotary_embedding_dim is larger than the head")
    g.divides(2, width, "features are rotated in pairs, and rotary_embedding_dim is odd")
    return width


@rotary.reference
def _(x: Array, cos: Array, sin: Array, ids: Array | None = None, **attrs: Any) -> Array:
    if ids is not None:
        check_positions(ids, cos)
        cos, sin = cos[ids], sin[ids]
    # [batch, length, heads, head]: the angles of a position broadcast over the heads.
    if x.ndim == 3:
        heads = attrs["num_heads"]
        tokens = x.reshape(*x.shape[:2], heads, x.shape[2] // heads)
    else:
        tokens = x.transpose(0, 2, 1, 3)
    result = rotated_pairs(tokens, cos[:, :, None], sin[:, :, None], attrs["interleaved"])
    return result.reshape(x.shape) if x.ndim == 3 else result.transpose(0, 2, 1, 3)


contrib_rotary: Final = contrib_op(
    "RotaryEmbedding",
    "input:T position_ids:M cos_cache:T sin_cache:T",
    "output:T",
    attrs={
        "interleaved": 0,
        "is_packed_batching": 0,
        "num_heads": 0,
        "rotary_embedding_dim": 0,
        "scale": 1.0,
    },
    types=_TYPES,
)


def packed_heads(hidden: Size, angles: Size, attrs: dict[str, Any]) -> Size:
    """Return the number of heads packed in the last axis of a 3-D input."""
    if not attrs["rotary_embedding_dim"]:
        return hidden // (angles * 2)
    heads: int = attrs["num_heads"]
    if heads < 1:
        raise InvalidGraph("rotary_embedding_dim needs num_heads")
    return heads


@contrib_rotary.infer
def infer_rotary(g: Scope, x: Fact, ids: Fact, cos: Fact, sin: Fact, **attrs: Any) -> Fact:
    same_rank(2, cos_cache=cos, sin_cache=sin)
    same_dims(g, sin.dims, cos.dims, "sin_cache")
    if x.rank not in (3, 4):
        raise InvalidGraph(f"input must have rank 3 or 4, got {x}")
    angles = cos.dims[1]
    rows = x.dims[1] if x.rank == 3 else x.dims[2]
    if x.rank == 4:
        g.at_least(x.dims[3], angles * 2, "the caches hold more angles than a head has pairs")
    else:
        heads = packed_heads(x.dims[2], angles, attrs)
        if attrs["rotary_embedding_dim"]:
            g.divides(heads, x.dims[2], "num_heads does not split the input")
            head = x.dims[2] // heads
            g.at_least(head, angles * 2, "the caches hold more angles than a head has pairs")
        else:
            g.divides(angles * 2, x.dims[2], "the caches hold angles of another size of heads")
    width = attrs["rotary_embedding_dim"]
    if width:
        g.equal(angles * 2, width, "the caches hold another number of angles")
    if ids.rank == 1:
        g.equal(ids.dims[0], 1, "position_ids is one number, or one for each row")
    else:
        same_dims(g, ids.dims, (x.dims[0], rows), "position_ids")
    return x.without_contents()


@contrib_rotary.reference
def run_rotary(x: Array, ids: Array, cos: Array, sin: Array, **attrs: Any) -> Array:
    if not x.size:
        return np.array(x)
    is_packed = x.ndim == 3
    tokens = x
    if is_packed:
        heads = packed_heads(x.shape[2], cos.shape[1], attrs)
        assert isinstance(heads, int)
        tokens = split_heads(x, heads)
    positions = ids
    if ids.ndim == 1:
        positions = np.zeros((x.shape[0], 1), np.int64) + ids + np.arange(tokens.shape[2])
    y = rotated(tokens, cos, sin, positions, attrs["interleaved"])
    return merge_heads(y) if is_packed else y


# M-RoPE: a token has a time, a row and a column; each feature pair is rotated by one of them.
multi: Final = contrib_op(
    "MRotaryEmbedding",
    "input:T position_ids:M cos_cache:T sin_cache:T",
    "output:T",
    attrs={**contrib_rotary.attrs, "mrope_layout": 0, "mrope_section": required("ints")},
    types=_TYPES,
)


def mrope_streams(attrs: dict[str, Any]) -> Array:
    """Return which of the three positions rotates each pair of features.

    mrope_layout 0 assigns contiguous sections; 1 interleaves them as t h w t h w ... t t.
    """
    sections = attrs["mrope_section"]
    if len(sections) != 3 or min(sections) < 0 or sum(sections) > MAX_PAIRS:
        raise InvalidGraph(f"mrope_section {sections} are not three sizes of at most {MAX_PAIRS}")
    if attrs["mrope_layout"] == 0:
        return np.repeat(np.arange(3), sections)
    if attrs["mrope_layout"] != 1:
        raise InvalidGraph(f"mrope_layout must be 0 or 1, got {attrs['mrope_layout']}")
    streams = np.zeros(sum(sections), np.int64)
    for stream in (1, 2):
        streams[stream : 3 * sections[stream] : 3] = stream
    return streams


@multi.infer
def _(g: Scope, x: Fact, ids: Fact, cos: Fact, sin: Fact, **attrs: Any) -> Fact:
    same_rank(3, position_ids=ids)
    g.equal(ids.dims[0], 3, "position_ids has a time, a row and a column for each token")
    y: Fact = infer_rotary(g, x, ids.shaped(ids.dims[1:]), cos, sin, **attrs)
    g.equal(cos.dims[1], len(mrope_streams(attrs)), "mrope_section does not add up to the angles")
    return y


@multi.reference
def _(x: Array, ids: Array, cos: Array, sin: Array, **attrs: Any) -> Array:
    check_positions(ids, cos)
    streams = mrope_streams(attrs)
    rows = np.moveaxis(ids[streams], 0, -1)  # [batch, rows, pairs]
    tables = [a[rows, np.arange(len(streams))] for a in (cos, sin)]
    flat = [a.reshape(-1, len(streams)) for a in tables]
    positions = np.arange(rows.shape[0] * rows.shape[1]).reshape(rows.shape[:2])
    return np.asarray(run_rotary(x, positions, *flat, **attrs))


@multi.decompose
def _(b: Builder, node: Node) -> Outputs:
    """MRotaryEmbedding: each column of the caches follows one of three position ids."""
    x, ids, *caches = (input_of(node, i) for i in range(4))
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
    y = b.RotaryEmbedding(
        x, *angles, num_heads=heads, interleaved=interleaved, rotary_embedding_dim=width
    )
    return (y,)


OPS: Final = (rotary, contrib_rotary, multi)

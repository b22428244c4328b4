"""EmbedLayerNormalization: word, position and segment embeddings, summed and layer-normalized."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dtype import F16, F32, I32, I64, U32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional
from sardonyx.ops.arrays import Array, float32, wide
from sardonyx.ops.attention.heads import same_dims, same_rank
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.normalize.standard import layer_norm

embed: Final = Op(
    "EmbedLayerNormalization",
    1,
    "input_ids:I segment_ids:I? word_embedding:T position_embedding:T segment_embedding:T? "
    "gamma:T beta:T mask:I? position_ids:I?",
    "output:T mask_index:I? embedding_sum:T?",
    domain=MICROSOFT,
    attrs={"epsilon": float32(1e-12), "mask_index_type": optional("int")},
    types={"T": frozenset((F32, F16)), "I": frozenset((I32,))},
)


@embed.infer
def infer_embed(g: Scope, *inputs: Any, **attrs: Any) -> tuple[Fact, ...]:
    """Check the ids and tables, whatever the element type of the tables is."""
    ids, segment_ids, word_table, position_table, segment_table, gamma, beta, mask, position_ids = (
        inputs
    )
    if (segment_ids is None) != (segment_table is None):
        raise InvalidGraph("segment_ids and segment_embedding go together: one of them is missing")
    same_rank(2, input_ids=ids, word_embedding=word_table, position_embedding=position_table)
    batch, rows = ids.dims
    hidden = word_table.dims[1]
    g.equal(position_table.dims[1], hidden, "position_embedding has rows of another length")
    if segment_table is not None:
        same_dims(g, segment_table.dims, (segment_table.dims[0], hidden), "segment_embedding")
    for name, fact in (("segment_ids", segment_ids), ("mask", mask)):
        if fact is not None:
            same_dims(g, fact.dims, (batch, rows), name)
    if position_ids is None:
        g.at_least(
            position_table.dims[0], rows, "position_embedding has fewer rows than there are words"
        )
    else:
        same_rank(2, position_ids=position_ids)
        g.equal_or_one(position_ids.dims[0], batch, "position_ids do not broadcast over the batch")
        g.equal(position_ids.dims[1], rows, "position_ids has another length than input_ids")
    same_dims(g, gamma.dims, (hidden,), "gamma")
    same_dims(g, beta.dims, (hidden,), "beta")
    y = word_table.shaped((batch, rows, hidden))
    return y, Fact(I32, (batch,)), y


def _lookup(table: Array, ids: Array, what: str) -> Array:
    wrong = ids[(ids < 0) | (ids >= table.shape[0])]
    if wrong.size:
        raise InvalidArgument(f"{what} {int(wrong[0])} is outside [0, {table.shape[0]})")
    return wide(table)[ids]


@embed.reference
@np.errstate(all="ignore")
def embed_reference(*inputs: Any, epsilon: float, **_: Any) -> tuple[Array, ...]:
    """The normalized sum of the embeddings, the number of unmasked tokens, and the sum."""
    ids, segment_ids, word_table, position_table, segment_table, gamma, beta, mask, position_ids = (
        inputs
    )
    positions = np.arange(ids.shape[1])[None] if position_ids is None else position_ids
    total = _lookup(word_table, ids, "word") + _lookup(position_table, positions, "position")
    if segment_table is not None and segment_ids is not None:
        total = total + _lookup(segment_table, segment_ids, "segment")
    attrs = {**layer_norm.defaults, "epsilon": epsilon}
    y = layer_norm.run((total, gamma, beta), attrs)[0]
    token_counts = np.zeros(ids.shape[0], np.int32)
    if mask is not None:
        token_counts = (mask == 1).sum(axis=1, dtype=np.int32)
    return y.astype(word_table.dtype), token_counts, total.astype(word_table.dtype)


@embed.decompose
def _(b: Builder, node: Node) -> Outputs:
    """EmbedLayerNormalization: the sum of word, position and segment embeddings."""
    ids, segment_ids, words, position_table, segments, gamma, beta, mask, positions = (
        optional_input(node, i) for i in range(9)
    )
    ids, position_table = input_of(node, 0), input_of(node, 3)
    total = b.Gather(words, _unsigned(b, ids))
    if positions is None:
        # Without position ids the positions are 0, 1, 2, ...
        picked = b.Slice(position_table, b.ints(0), b.Shape(ids, start=1, end=2), b.ints(0))
    else:
        picked = b.Gather(position_table, _unsigned(b, positions))
    total = b.Add(total, picked)
    if segment_ids is not None:
        total = b.Add(total, b.Gather(segments, _unsigned(b, segment_ids)))
    y = b.LayerNormalization(total, gamma, beta, epsilon=node.attrs["epsilon"])
    token_count: Value | None = None
    if len(node.outputs) > 1 and node.outputs[1].is_used:
        # The second output counts the unmasked tokens; without a mask it is 0.
        is_token = b.Equal(mask, b.const(1, I32)) if mask is not None else b.Less(ids, ids)
        token_count = b.ReduceSum(b.Cast(is_token, to=I32.onnx), b.ints(1), keepdims=0)
    return y, token_count, b.Identity(total) if len(node.outputs) > 2 else None


def _unsigned(b: Builder, ids: Value) -> Value:
    """Cast ids so that negative ones are out of range: Gather would count them from the end."""
    return b.Cast(b.Cast(ids, to=U32.onnx), to=I64.onnx)


OPS: Final = (embed,)

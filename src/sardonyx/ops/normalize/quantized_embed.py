"""QEmbedLayerNormalization: EmbedLayerNormalization with 8-bit tables."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dtype import F32, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, need
from sardonyx.ops.quantize.matmul_conv import BYTES, FLOAT, check_single
from sardonyx.ops.quantize.qdq import dequantize_node
from sardonyx.ops.quantize.qlinear import dequantized

embed: Final = Op(
    "QEmbedLayerNormalization",
    1,
    "input_ids:T1 segment_ids:T1? word_embedding_quant:T2 position_embedding_quant:T2 "
    "segment_embedding:T2? gamma_quant:T2 beta_quant:T2 mask:T1? word_embedding_scale:T "
    "position_embedding_scale:T segment_embedding_scale:T? gamma_scale:T beta_scale:T "
    "word_embedding_zero_point:T2 position_embedding_zero_point:T2 "
    "segment_embedding_zero_point:T2? gamma_zero_point:T2 beta_zero_point:T2",
    "layernorm_out:T mask_index_out:T1",
    domain=MICROSOFT,
    attrs={"epsilon": float(np.float32(1e-12))},
    types={"T": FLOAT, "T1": frozenset((I32,)), "T2": BYTES},
)


def _check_table(g: Scope, name: str, table: Fact, width: Any) -> None:
    if table.rank != 2:
        raise InvalidGraph(f"{name} is a table of rows, not {table}")
    g.equal(table.dims[1], width, f"rows of {name} and of word_embedding_quant differ")


@embed.infer
def _(g: Scope, *facts: Any, epsilon: float) -> tuple[Fact, Fact]:
    ids, segments, word_table, position_table, segment_table, gamma, beta, mask, *params = facts
    names = (slot.name for slot in embed.inputs[8:])
    check_single(g, **dict(zip(names, params, strict=True)))
    is_present = [f is not None for f in (segments, segment_table, params[2], params[7])]
    if any(is_present) and not all(is_present):
        raise InvalidGraph("segment ids, their table, its scale and zero point: all or none")
    if ids.rank != 2 or word_table.rank != 2:
        raise InvalidGraph(
            f"input_ids are rows of ids and words a table, not {ids} and {word_table}"
        )
    batch, rows = ids.dims
    width = word_table.dims[1]
    _check_table(g, "position_embedding_quant", position_table, width)
    g.at_least(position_table.dims[0], rows, "there are fewer positions than ids in a row")
    if segments is not None:
        _check_table(g, "segment_embedding", segment_table, width)
    for name, other in (("segment_ids", segments), ("mask", mask)):
        if other is None:
            continue
        if other.rank != 2:
            raise InvalidGraph(f"{name} has the shape of input_ids, and is {other}")
        for have, size in zip(other.dims, (batch, rows), strict=True):
            g.equal(have, size, f"{name} has another shape than input_ids")
    for name, vector in (("gamma_quant", gamma), ("beta_quant", beta)):
        if vector.rank != 1:
            raise InvalidGraph(f"{name} is a vector, not {vector}")
        g.equal(vector.dims[0], width, f"{name} does not fit the embeddings")
    return Fact(F32, (batch, rows, width)), Fact(I32, (batch,))


def _lookup(table: Array, ids: Array, what: str) -> Array:
    if ids.size and (ids.min() < 0 or ids.max() >= table.shape[0]):
        worst = ids.min() if ids.min() < 0 else ids.max()
        raise InvalidArgument(f"{what} holds {worst}, outside [0, {table.shape[0]})")
    picked: Array = table[ids]
    return picked


@embed.reference
def _(*arrays: Any, epsilon: float) -> tuple[Array, Array]:
    ids, segments, word_table, position_table, segment_table, gamma, beta, mask, *params = arrays
    scales, zeros = params[:5], params[5:]
    with np.errstate(all="ignore"):
        total = dequantized(_lookup(word_table, ids, "input_ids"), scales[0], zeros[0])
        total = total + dequantized(position_table[: ids.shape[1]], scales[1], zeros[1])
        if segments is not None:
            total = total + dequantized(
                _lookup(segment_table, segments, "segment_ids"), scales[2], zeros[2]
            )
        centred = total - total.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        y = centred / np.sqrt(variance + np.float32(epsilon))
        y = y * dequantized(gamma, scales[3], zeros[3]) + dequantized(beta, scales[4], zeros[4])
    count = np.zeros(ids.shape[0], np.int32) if mask is None else (mask == 1).sum(1, dtype=np.int32)
    return y.astype(np.float32), count


def _gather_rows(b: Builder, table: Value, ids: Value) -> Value:
    """Rows of a table; negative ids are out of range, not counted from the end."""
    size = table.tensor.dims[0]
    need(isinstance(size, int), "the length of the table is unknown")
    # Gather accepts negative indices: replaced by an index that it rejects.
    checked = b.Where(b.Less(ids, 0), b.const(size, I32), ids)
    return b.Gather(table, checked, axis=0)


@embed.decompose
def _(b: Builder, node: Node) -> Outputs:
    """QEmbedLayerNormalization."""
    ids, segments, words, places, segment_table, gamma, beta, mask, *scales = (
        optional_input(node, i) for i in range(18)
    )
    assert ids is not None
    assert words is not None
    assert places is not None
    pairs = list(zip(scales[:5], scales[5:], strict=True))
    total = dequantize_node(b, _gather_rows(b, words, ids), *pairs[0])
    rows = b.Shape(ids, start=1, end=2)
    total = b.Add(total, dequantize_node(b, b.Slice(places, b.ints(0), rows, b.ints(0)), *pairs[1]))
    if segments is not None and segment_table is not None:
        total = b.Add(
            total, dequantize_node(b, _gather_rows(b, segment_table, segments), *pairs[2])
        )
    vectors = [
        dequantize_node(b, v, *k) for v, k in zip((gamma, beta), pairs[3:], strict=True) if v
    ]
    y = b.LayerNormalization(total, *vectors, axis=-1, epsilon=node.attrs["epsilon"])
    # The count of unmasked tokens, which is 0 without a mask.
    if mask is None:
        count = b.Expand(b.const(0, I32), b.Shape(ids, start=0, end=1))
    else:
        seen = b.Cast(b.Equal(mask, 1), to=I32.onnx)
        count = b.ReduceSum(seen, b.ints(1), keepdims=0)
    return y, count


OPS: Final = (embed,)

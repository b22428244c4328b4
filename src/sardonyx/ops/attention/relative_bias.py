"""Relative position biases of attention scores: T5 buckets, and WavLM's gated bias."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dtype import F16, F32, I32, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, required
from sardonyx.ops.arrays import Array, one_int, wide
from sardonyx.ops.attention.heads import expect_dims, heads_of, same_rank, split_heads
from sardonyx.ops.attention.packed import restored
from sardonyx.ops.elementwise.arithmetic import sigmoid
from sardonyx.ops.sizes import allocatable

_FLOATS: Final = frozenset((F32, F16))

relative: Final = contrib_op(
    "RelativePositionBias",
    "bias_table:T query_length:U key_length:U",
    "output:T",
    attrs={"is_bidirectional": 0, "max_distance": required("int")},
    types={"T": _FLOATS, "U": frozenset((I64,))},
)


@relative.infer
def _(g: Scope, table: Fact, query: Fact, key: Fact, **attrs: Any) -> Fact:
    same_rank(2, bias_table=table)
    if attrs["max_distance"] < 1:
        raise InvalidGraph(f"max_distance must be at least 1, got {attrs['max_distance']}")
    lengths = (g.new_dim("rows") if f.sym is None else f.sym[0] for f in (query, key))
    return table.shaped((1, table.dims[1], *lengths))


@relative.reference
def _(table: Array, query: Array, key: Array, **attrs: Any) -> Array:
    rows, keys = one_int(query, "query_length"), one_int(key, "key_length")
    if min(rows, keys) < 0:
        raise InvalidArgument(f"query_length {rows} and key_length {keys} must not be negative")
    # The distances are int64, whatever the table's type.
    allocatable((max(table.shape[1], 1), rows, keys), np.int64, "the output")
    distance = np.arange(keys) - np.arange(rows)[:, None]
    buckets = _buckets(distance, table.shape[0], attrs)
    # As in onnxruntime, the [buckets, heads] table is stored per head: reshaped, not transposed.
    return np.asarray(table.reshape(table.shape[1], table.shape[0])[:, buckets][None])


def _buckets(distance: Array, count: int, attrs: dict[str, Any]) -> Array:
    """Return T5's bucket of each distance: exact for small ones, logarithmic for larger ones."""
    first = np.zeros_like(distance)
    if attrs["is_bidirectional"]:
        count //= 2
        first = np.where(distance > 0, count, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = count // 2
    with np.errstate(all="ignore"):
        ratio = np.log(distance.astype(np.float32) / np.float32(exact))
        spread = np.float32(np.log(attrs["max_distance"] / exact))
        far = exact + np.nan_to_num(ratio / spread * np.float32(count - exact)).astype(np.int64)
    return np.asarray(first + np.where(distance < exact, distance, np.minimum(far, count - 1)))


gated: Final = contrib_op(
    "GatedRelativePositionBias",
    "query_layer:T query_bias:T rel_pos:T weight:T bias:T eco_a:T token_offset:M?",
    "output:T",
    attrs={"num_heads": required("int")},
    types={"T": _FLOATS, "M": frozenset((I32,))},
)


@gated.infer
def _(g: Scope, *inputs: Any, num_heads: int) -> Any:
    query, query_bias, positions, weight, bias, scale, offsets = inputs
    hidden = query.dims[-1]
    heads, head = heads_of(g, num_heads, hidden, "num_heads")
    if offsets is None:
        same_rank(3, query_layer=query)
        batch, rows = query.dims[:2]
    else:
        same_rank(2, query_layer=query, token_offset=offsets)
        batch, rows = offsets.dims
    expect_dims(g, (hidden,), query_bias=query_bias)
    expect_dims(g, (1, heads, rows, rows), rel_pos=positions)
    same_rank(2, weight=weight)
    g.equal(weight.dims[0], head, "weight does not fit a head")
    g.divides(2, weight.dims[1], "weight has an odd number of columns")
    expect_dims(g, (weight.dims[1],), bias=bias)
    expect_dims(g, (1, heads, 1, 1), eco_a=scale)
    return query.shaped((batch, heads, rows, rows))


@gated.reference
@np.errstate(all="ignore")
def _(*inputs: Any, num_heads: int) -> Array:
    query, query_bias, positions, weight, bias, scale, offsets = inputs
    x = query if offsets is None else restored(query, offsets)
    q = split_heads(wide(x) + wide(query_bias), num_heads)
    gates = np.matmul(q, wide(weight)) + wide(bias)
    # Two gates per head, each the sum of half of the columns.
    gate_sums = gates.reshape(*gates.shape[:3], 2, -1).sum(axis=-1)
    u, r = (part[..., None] for part in np.moveaxis(sigmoid(gate_sums), -1, 0))
    y = (u * (r * wide(scale) - 1) + 2) * wide(positions)
    return np.asarray(y.astype(query.dtype))


OPS: Final = (relative, gated)

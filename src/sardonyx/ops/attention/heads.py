"""What the attention ops share: packed heads, heads shared by groups, softmax in a chosen type."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import BF16, F16, F32, F64, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops.arrays import Array, wide

MAX_HEADS: Final = 1 << 24  # more would be features, and none of them in a head
PRECISIONS: Final[dict[int, DType]] = {d.onnx: d for d in (F32, F16, F64, BF16)}


def precision(number: int) -> DType:
    """The type behind a softmax_precision attribute."""
    found = PRECISIONS.get(number)
    if found is None:
        raise InvalidGraph(f"softmax_precision {number} is none of {sorted(PRECISIONS)}")
    return found


def rounded(x: Array, dtype: Any) -> Array:
    """Wide numbers cut to what `dtype` can hold, still in the type that arithmetic is done in."""
    with np.errstate(all="ignore"):
        return wide(x.astype(dtype, copy=False))


def heads_of(g: Scope, heads: int | None, hidden: Size, what: str) -> tuple[int, Size]:
    """The number of heads in a packed dimension, and the size of one."""
    if heads is None or not 1 <= heads <= MAX_HEADS:
        raise InvalidGraph(f"{what} is {heads}, and must be 1 or more when heads are packed")
    g.divides(heads, hidden, f"{what} does not split the packed heads")
    return heads, hidden // heads


def unpack(x: Array, heads: int) -> Array:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, hidden = x.shape
    return x.reshape(batch, length, heads, hidden // heads).transpose(0, 2, 1, 3)


def pack(x: Array) -> Array:
    """[batch, heads, length, size] as [batch, length, heads * size]."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def grouped_matmul(a: Array, b: Array) -> Array:
    """Each head of `a` times the head of `b` that its group shares, one product for the group."""
    batch, heads, rows, inner = a.shape
    shared = b.shape[1]
    if shared not in (0, heads):
        a = a.reshape(batch, shared, heads // shared * rows, inner)
    product: Array = np.matmul(a, b)
    return product.reshape(batch, heads, rows, b.shape[3])


def softmax(scores: Array, dtype: Any) -> Array:
    """Softmax over the last axis in `dtype`; a row that is all -inf gives NaN, as in Softmax."""
    # A narrow type is asked for by name here, so each step is done in it, sums included.
    x = scores.astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        if x.shape[-1]:
            x = np.exp(x - x.max(axis=-1, keepdims=True))
        return wide(x / x.sum(axis=-1, keepdims=True))


def same_rank(rank: int, **facts: Fact) -> None:
    """Refuses inputs of another rank."""
    for name, fact in facts.items():
        if fact.rank != rank:
            raise InvalidGraph(f"{name} has rank {fact.rank}, and must have {rank}: it is {fact}")


def same_dims(g: Scope, found: Shape, wanted: Shape, what: str) -> None:
    """Needs two shapes to be equal."""
    if len(found) != len(wanted):
        raise InvalidGraph(f"{what} has rank {len(found)}, and must have {len(wanted)}")
    for a, b in zip(found, wanted, strict=True):
        g.equal(a, b, f"{what} has another size than its neighbours")

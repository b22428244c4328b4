"""RotaryEmbedding (RoPE): pairs of features rotated by an angle that depends on the position."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional
from sardonyx.ops.arrays import Array
from sardonyx.ops.attention.cache import check_positions, rotated_pairs
from sardonyx.ops.attention.heads import heads_of, same_dims, same_rank

rotary: Final = Op(
    "RotaryEmbedding",
    23,
    "X:T cos_cache:T sin_cache:T position_ids:M?",
    "Y:T",
    attrs={"interleaved": 0, "num_heads": optional("int"), "rotary_embedding_dim": 0},
    types={"T": frozenset((F32, F16, BF16)), "M": frozenset((I64,))},
)


@rotary.infer
def _(g: Scope, x: Fact, cos: Fact, sin: Fact, ids: Fact | None, **attrs: Any) -> Fact:
    if x.rank == 3:
        batch, length, hidden = x.dims
        _, head = heads_of(g, attrs["num_heads"], hidden, "num_heads")
    elif x.rank == 4:
        batch, _, length, head = x.dims
    else:
        raise InvalidGraph(f"X has rank {x.rank}, and must have 3 or 4: it is {x}")
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
    return x.plain()


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


OPS: Final = (rotary,)

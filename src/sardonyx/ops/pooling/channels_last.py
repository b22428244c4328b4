"""Pooling with channels last (NHWC): the ops that lowering rewrites pooling to, and NhwcMaxPool.

Images are [batch, *spatial, channels].
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import F32, I8, I64, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, MICROSOFT, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.builder import Builder
from sardonyx.ops.inference import (
    channels_first,
    channels_last,
    to_channels_first,
    to_channels_last,
)
from sardonyx.ops.pooling import standard
from sardonyx.ops.sizes import SIZES


def _nhwc(pool: Op, name: str, **schema: Any) -> Op:
    """Return the channels-last version of a pooling op: its first output."""
    op = Op(name, 1, "x:T", "y:T", **schema)

    @op.infer
    def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
        assert pool.infer_rule is not None
        result = pool.infer_rule(g, channels_first(x), **{**pool.defaults, **attrs})
        return channels_last(result[0] if isinstance(result, tuple) else result)

    @op.reference
    def _(x: Array, **attrs: Any) -> Array:
        result = pool.run((np.moveaxis(x, -1, 1),), {**pool.defaults, **attrs})
        return np.moveaxis(result[0], 1, -1)

    return op


INTERNAL_POOLS: Final = tuple(
    _nhwc(pool, pool.name, attrs=pool.attrs, types={"T": pool.types["T"]}, domain=INTERNAL)
    for pool in (standard.max_pool, standard.average_pool, standard.lp_pool)
)
indexed_max_pool: Final = Op(
    "IndexedMaxPool",
    1,
    "x:T",
    "y:T indices:I",
    attrs={k: v for k, v in standard.max_pool.attrs.items() if k != "storage_order"},
    types={"T": frozenset((F32,)), "I": SIZES},
    domain=INTERNAL,
)


@indexed_max_pool.infer
def _(g: Scope, x: Fact, **attrs: Any) -> tuple[Fact, Fact]:
    assert standard.max_pool.infer_rule is not None
    y = standard.max_pool.infer_rule(g, channels_first(x), **attrs)[0]
    return channels_last(y), channels_last(Fact(I64, y.dims))


@indexed_max_pool.reference
def _(x: Array, **attrs: Any) -> tuple[Array, ...]:
    """Pool with the channels first: indices count the elements in that order."""
    results = standard.max_pool.run((np.moveaxis(x, -1, 1),), {**attrs, "storage_order": 0})
    return tuple(np.moveaxis(v, 1, -1) for v in results)


_BYTES: Final = {"T": frozenset((I8, U8))}
nhwc_max_pool: Final = _nhwc(
    standard.max_pool, "NhwcMaxPool", attrs=standard.POOL, types=_BYTES, domain=MICROSOFT
)


@nhwc_max_pool.decompose
def _(b: Builder, node: Node) -> Value:
    x = input_of(node, 0)
    rank = x.tensor.rank
    # Layout propagation removes the Transposes again where kernels are NHWC.
    y = b.MaxPool(b.Transpose(x, perm=to_channels_first(rank)), **node.attrs)
    return b.Transpose(y, perm=to_channels_last(rank))


OPS: Final = (*INTERNAL_POOLS, indexed_max_pool, nhwc_max_pool)

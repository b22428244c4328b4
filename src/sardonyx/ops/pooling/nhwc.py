"""NhwcMaxPool of com.microsoft: max pooling of 8-bit NHWC images."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.pooling.standard import POOL, max_pool
from sardonyx.ops.quantize.matmul_conv import BYTES
from sardonyx.ops.quantize.qdq import in_nchw
from sardonyx.ops.quantize.qlinear import as_channels_first

pool: Final = Op(
    "NhwcMaxPool", 1, "x:T", "y:T", domain=MICROSOFT, attrs=POOL, types={"T": BYTES}
)  # fmt: skip


@pool.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    rule = max_pool.infer_rule
    assert rule is not None
    result: Fact = rule(g, as_channels_first(x, True), storage_order=0, **attrs)[0]
    return result.shaped((result.dims[0], *result.dims[2:], result.dims[1]))


@pool.reference
def _(x: Array, **attrs: Any) -> Array:
    rule = max_pool.reference_rule
    assert rule is not None
    result: Array = rule(np.moveaxis(x, -1, 1), storage_order=0, **attrs)[0]
    return np.moveaxis(result, 1, -1)


@pool.decompose
def _(b: Builder, node: Node) -> Outputs:
    """NhwcMaxPool."""
    return (in_nchw(b, input_of(node, 0), lambda v: b.MaxPool(v, **node.attrs), True),)


OPS: Final = (pool,)

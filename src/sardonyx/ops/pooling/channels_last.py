"""Pooling with channels last (NHWC): lowering rewrites the pooling ops to them.

Images are [batch, *spatial, channels].
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.conv.channels_last import channels_first, channels_last
from sardonyx.ops.pooling import standard as standard_pool


def _pool(standard: Op) -> Op:
    """Return the channels-last form of a windowed or global pooling op."""
    types = {"T": standard.types["T"]}
    op = Op(standard.name, 1, "x:T", "y:T", attrs=standard.attrs, types=types, domain=INTERNAL)
    infer, reference = _rules(standard)

    @op.infer
    def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
        result = infer(g, channels_first(x), **attrs)
        return channels_last(result[0] if isinstance(result, tuple) else result)

    @op.reference
    def _(x: Array, **attrs: Any) -> Array:
        result = reference(np.moveaxis(x, -1, 1), **attrs)
        return np.moveaxis(result[0] if isinstance(result, tuple) else result, 1, -1)

    return op


def _rules(standard: Op) -> tuple[Any, Any]:
    assert standard.infer_rule is not None
    assert standard.reference_rule is not None
    return standard.infer_rule, standard.reference_rule


max_pool = _pool(standard_pool.max_pool)


average_pool = _pool(standard_pool.average_pool)


lp_pool = _pool(standard_pool.lp_pool)


global_max = _pool(standard_pool.global_max)


global_average = _pool(standard_pool.global_average)


global_lp = _pool(standard_pool.global_lp)


OPS: Final = (max_pool, average_pool, lp_pool, global_max, global_average, global_lp)

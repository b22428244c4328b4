"""Upgrades of the pooling ops."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.load.upgrade import OldNode, Upgrades, number_like
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("LpPool GlobalLpPool", below=2)
def p_becomes_an_integer(b: Builder, node: OldNode) -> Any:
    """The order p of the norm was a float; a fractional p is expressed by Pow and average pooling.

    The sum over a window is its average times the number of its elements.
    """
    p, attrs = node.attr("p", 2.0), node.attrs_without("p")
    if not math.isfinite(p) or p <= 0:
        raise InvalidGraph(f"p of {node.op_type} must be a positive number, got {p}")
    x = node.required_input(0)
    if p == int(p):
        return b.node(node.op_type, x, p=int(p), **attrs).outputs
    powers = b.Pow(b.Abs(x), number_like(b, p, x))
    if node.op_type == "LpPool":
        mean = b.AveragePool(powers, count_include_pad=1, **attrs)
        total = b.Mul(mean, number_like(b, math.prod(attrs.get("kernel_shape", ())), x))
    else:
        mean = b.GlobalAveragePool(powers)
        count = b.Div(b.Size(x), b.Max(b.Size(mean), b.const(np.int64(1))))
        total = b.Mul(mean, b.CastLike(count, x))
    return b.Pow(total, number_like(b, 1 / p, x))

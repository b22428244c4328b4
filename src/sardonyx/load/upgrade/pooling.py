"""Older forms of the pools."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Value
from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("LpPool GlobalLpPool", below=2)
def p_becomes_whole(b: Builder, node: OldNode) -> Any:
    """The order of the norm was a float; one that is no whole number is made from other ops."""
    p = node.attr("p", 2.0)
    attrs = {k: v for k, v in node.attrs.items() if k != "p"}
    if not math.isfinite(p) or p <= 0:
        raise InvalidGraph(f"p of {node.op_type} is a positive number, not {p}")
    if p == int(p):
        return b.node(node.op_type, node.needed(0), p=int(p), **attrs).outputs
    x = node.needed(0)
    powers = b.Pow(b.Abs(x), _like(b, p, x))
    if node.op_type == "LpPool":
        mean = b.AveragePool(powers, count_include_pad=1, **attrs)
        total = b.Mul(mean, _like(b, math.prod(attrs.get("kernel_shape", ())), x))
    else:
        mean = b.GlobalAveragePool(powers)
        count = b.Div(b.Size(x), b.Max(b.Size(mean), b.const(np.int64(1))))
        total = b.Mul(mean, b.CastLike(count, x))
    return b.Pow(total, _like(b, 1 / p, x))


def _like(b: Builder, number: float, x: Value | None) -> Any:
    with np.errstate(over="ignore"):
        return b.CastLike(b.const(np.float32(number)), x)


UPGRADES: Final = (*p_becomes_whole,)

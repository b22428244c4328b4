"""Ops of com.microsoft that are products and sums of short integers."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.dtype import I32
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("MatMulInteger16", below=ANY, domain=MICROSOFT)
def product_of_shorts(b: Builder, node: OldNode) -> Any:
    return b.MatMul(*(b.Cast(x, to=I32.onnx) for x in node.inputs))


@upgrade("MulInteger", below=ANY, domain=MICROSOFT)
def product_of_bytes(b: Builder, node: OldNode) -> Any:
    sides = []
    for slot in (0, 2):
        x, zero = b.Cast(node.input(slot), to=I32.onnx), node.input(slot + 1)
        sides.append(x if zero is None else b.Sub(x, b.Cast(zero, to=I32.onnx)))
    return b.Mul(*sides)


@upgrade("ReduceSumInteger", below=ANY, domain=MICROSOFT)
def sum_of_bytes(b: Builder, node: OldNode) -> Any:
    axes = node.attr("axes")
    over = () if not axes else (b.ints(*axes),)
    return b.ReduceSum(b.Cast(node.input(0), to=I32.onnx), *over, keepdims=node.attr("keepdims", 1))


UPGRADES: Final = (
    *product_of_shorts,
    *product_of_bytes,
    *sum_of_bytes,
)

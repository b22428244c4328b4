"""Replacements of contrib ops over quantized tensors: in int32, or by standard ops."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.dtype import I32
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("MatMulInteger16", domain=MICROSOFT)
def matmul_of_int16(b: Builder, node: OldNode) -> Any:
    return b.MatMul(*(b.Cast(x, to=I32.onnx) for x in node.inputs))


@UPGRADES.rule("QLinearMatMul", domain=MICROSOFT)
def qlinear_matmul(b: Builder, node: OldNode) -> Any:
    """Made for float8 by onnxruntime's tools, before the standard op had it."""
    return b.QLinearMatMul(*node.inputs)


@UPGRADES.rule("MulInteger", domain=MICROSOFT)
def mul_of_int8(b: Builder, node: OldNode) -> Any:
    """Each factor is followed by its zero point, which may be absent."""
    factors = []
    for slot in (0, 2):
        x, zero = b.Cast(node.input(slot), to=I32.onnx), node.input(slot + 1)
        factors.append(x if zero is None else b.Sub(x, b.Cast(zero, to=I32.onnx)))
    return b.Mul(*factors)


@UPGRADES.rule("ReduceSumInteger", domain=MICROSOFT)
def reduce_sum_of_int8(b: Builder, node: OldNode) -> Any:
    axes = node.attr("axes")
    inputs = [b.Cast(node.input(0), to=I32.onnx)] + ([b.ints(*axes)] if axes else [])
    return b.ReduceSum(*inputs, keepdims=node.attr("keepdims", 1))

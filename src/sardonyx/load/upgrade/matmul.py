"""Upgrades of the matrix products."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("Gemm", below=7)
def c_always_broadcasts(b: Builder, node: OldNode) -> Any:
    """Before opset 7 an attribute said whether c may be broadcast."""
    return b.Gemm(*node.inputs, **node.attrs_without("broadcast"))


@UPGRADES.rule("TransposeMatMul", domain=MICROSOFT)
def transpose_matmul_is_fused_matmul(b: Builder, node: OldNode) -> Any:
    return b.FusedMatMul(*node.inputs, domain=MICROSOFT, **node.attrs)


@UPGRADES.rule("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(b: Builder, node: OldNode) -> Any:
    x, w = node.checked_inputs(2, 3)[:2]
    return b.FastGelu(b.MatMul(x, w), node.input(2), domain=MICROSOFT)

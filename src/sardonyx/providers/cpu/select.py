"""Picking elements by their values on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import BOOL, F32, F64
from sardonyx.graph.graph import Node
from sardonyx.place.provider import No
from sardonyx.program.call import Call, Lowered
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.move import given


def non_zero(node: Node) -> Lowered | No:
    dtype = given(node, 0).tensor.dtype
    if not dtype.is_integer and dtype not in (BOOL, F32, F64):
        return No(f"no kernel for {dtype}")
    return Call("nonzero", tuple(node.inputs))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {("", "NonZero"): non_zero}

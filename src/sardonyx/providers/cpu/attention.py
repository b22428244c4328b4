"""Attention on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.graph import Node
from sardonyx.ops.declare import INTERNAL
from sardonyx.program.call import Call
from sardonyx.providers.cpu.index import Lowering


def attention(node: Node) -> Call:
    q, k, v, *rest = node.inputs
    attrs = node.attrs
    ints = (attrs["rows_first"], attrs["zeroes"])
    return Call("attention", (q, k, v, rest[0] if rest else None), ints, (attrs["scale"],))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {(INTERNAL, "Attention"): attention}

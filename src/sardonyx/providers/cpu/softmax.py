"""Softmax on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node
from sardonyx.place.provider import No
from sardonyx.program.call import Call
from sardonyx.providers.cpu.index import Lowering


def softmax(node: Node) -> Call | No:
    x = node.inputs[0]
    assert x is not None
    if x.tensor.dtype is not F32:
        return No(f"no kernel for {x.tensor.dtype}")
    if node.attrs["axis"] not in (-1, x.tensor.rank - 1):
        return No("no kernel for an axis that is not the last")
    return Call("softmax_f32", (x,))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {("", "Softmax"): softmax}

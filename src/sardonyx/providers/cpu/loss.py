"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.graph import Node
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu.index import Lowerings, padded_inputs

_REDUCTIONS: Final = (b"none", b"sum", b"mean")


def _loss(node: Node) -> Call:
    is_log = node.op.name == "NegativeLogLikelihoodLoss"
    ignored = node.attrs["ignore_index"]
    reduction = _REDUCTIONS.index(node.attrs["reduction"])
    ints = (is_log, ignored is not None, ignored or 0, reduction)
    return Call("loss", padded_inputs(node, 3), ints)


LOWERINGS: Final[Lowerings] = {
    ("", "NegativeLogLikelihoodLoss"): _loss,
    ("", "SoftmaxCrossEntropyLoss"): _loss,
}

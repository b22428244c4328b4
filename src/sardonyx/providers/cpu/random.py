"""Random masks on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.graph import Node
from sardonyx.graph.op import GRADIENT
from sardonyx.ops.random.mask import RUN, threshold
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu.index import Lowerings


def mask(node: Node) -> Call:
    attrs = node.attrs
    return Call("dropout_mask", node.inputs, (attrs["seed"], threshold(attrs["ratio"]), RUN))


LOWERINGS: Final[Lowerings] = {(GRADIENT, "DropoutMask"): mask}

"""Softmax, LogSoftmax and Hardmax on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.graph import Node, input_of
from sardonyx.ops.inference import axis_of
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu.index import IN_PLACE, Lowerings, for_types


def _softmax(node: Node, kernel: str) -> Call:
    x = input_of(node, 0)
    # Hardmax writes zeros before it has read all of a row.
    shares = IN_PLACE if kernel != "hardmax" else ()
    return Call(kernel, (x,), (axis_of(node.attrs["axis"], x.tensor.rank),), shares=shares)


LOWERINGS: Final[Lowerings] = {
    ("", "Softmax"): for_types(FLOATS, _softmax, kernel="softmax"),
    ("", "LogSoftmax"): for_types(FLOATS, _softmax, kernel="log_softmax"),
    ("", "Hardmax"): for_types(FLOATS, _softmax, kernel="hardmax"),
}

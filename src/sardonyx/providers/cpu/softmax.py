"""Softmax and its kin on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Final

from sardonyx.graph.dtype import BF16, F16, F32, F64
from sardonyx.graph.graph import Node
from sardonyx.ops.inference import axis_of
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering


def _softmax(node: Node, row: str) -> Call | No:
    x = node.inputs[0]
    assert x is not None
    if x.tensor.dtype not in (F32, F64, F16, BF16):
        return No(f"no kernel for {x.tensor.dtype}")
    shares = ((0, 0),) if row != "hardmax" else ()  # which writes before it has read all
    return Call(row, (x,), (axis_of(node.attrs["axis"], x.tensor.rank),), shares=shares)


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "Softmax"): partial(_softmax, row="softmax"),
    ("", "LogSoftmax"): partial(_softmax, row="log_softmax"),
    ("", "Hardmax"): partial(_softmax, row="hardmax"),
}

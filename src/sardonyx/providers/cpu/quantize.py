"""Quantizing and dequantizing on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import BF16, F16, F32, I8, I16, I32, U8, U16, by_name
from sardonyx.graph.graph import Node, given, optional
from sardonyx.graph.op import INTERNAL
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering

REAL: Final = frozenset((F32, F16, BF16))
STEPS: Final = frozenset((U8, I8, U16, I16))
FEW_BITS: Final = frozenset(by_name(n) for n in ("u4", "i4", "u2", "i2"))


def _call(row: str, node: Node) -> Call:
    x, scale, zero = given(node, 0), given(node, 1), optional(node, 2)
    rank = x.tensor.rank
    axis = 0 if rank < 2 else node.attrs["axis"] % rank
    return Call(row, (x, scale, zero), (axis, node.attrs["block_size"]))


def quantize(node: Node) -> Call | No:
    """QuantizeLinear."""
    x, scale = given(node, 0).tensor.dtype, given(node, 1).tensor.dtype
    y = node.outputs[0].tensor.dtype
    if x not in REAL or scale not in REAL or y not in STEPS:
        return No(f"no kernel that quantizes {x} by {scale} to {y}")
    if node.attrs["precision"] not in (0, F32.onnx):
        return No("no kernel that divides in another precision than float32")
    return _call("quantize", node)


def dequantize(node: Node) -> Call | No:
    """DequantizeLinear."""
    x, scale = given(node, 0).tensor.dtype, given(node, 1).tensor.dtype
    y = node.outputs[0].tensor.dtype
    if x in FEW_BITS and scale in REAL:
        from sardonyx.providers.cpu.dequantized import unpacked  # few models need it

        return unpacked(node)
    if x not in STEPS | {I32} or scale not in REAL or y not in REAL:
        return No(f"no kernel that dequantizes {x} by {scale} to {y}")
    return _call("dequantize", node)


def dynamic(node: Node) -> Call:
    """DynamicQuantizeLinear."""
    return Call("dynamic_quantize", (given(node, 0),))


def lookup(node: Node) -> Call:
    """QLookup."""
    return Call("lookup", (given(node, 0), given(node, 1)), shares=((0, 0),))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "QLookup"): lookup,
    ("", "QuantizeLinear"): quantize,
    ("", "DequantizeLinear"): dequantize,
    ("", "DynamicQuantizeLinear"): dynamic,
}

"""Ops that pick elements by their values, on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64
from sardonyx.graph.graph import Node
from sardonyx.ops.inference import axis_of
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering

_KEYED: Final = frozenset((F32, F64, F16, BF16, I8, U8, I16, U16, I32, U32, I64, U64))
_INDEX: Final = frozenset((I32, I64))


def _top_k(node: Node) -> Call | No:
    x, k = node.inputs
    assert x is not None
    assert k is not None
    if x.tensor.dtype not in _KEYED:
        return No(f"no kernel for {x.tensor.dtype}")
    ints = (axis_of(node.attrs["axis"], x.tensor.rank), node.attrs["largest"])
    if k.tensor.sym is not None:
        return Call("top_k", (x,), ints)
    if k.tensor.dtype not in _INDEX:
        return No(f"no kernel for K of type {k.tensor.dtype}")
    return Call("top_k_open", (x, k), ints)


def _non_max(node: Node) -> Call | No:
    most = node.inputs[2] if len(node.inputs) > 2 else None
    if most is not None and most.tensor.dtype not in _INDEX:
        return No(f"no kernel for a limit of type {most.tensor.dtype}")
    numbers = (*node.inputs[:2], *node.inputs[3:])
    if any(v is not None and v.tensor.dtype is not F32 for v in numbers):
        return No("the kernel takes float32")
    return Call("non_max", node.inputs, (node.attrs["center_point_box"],))


def _non_zero(node: Node) -> Call | No:
    (x,) = node.inputs
    assert x is not None
    dtype = x.tensor.dtype
    if not dtype.is_integer and dtype not in (BOOL, F32, F64):
        return No(f"no kernel for {dtype}")
    return Call("nonzero", (x,))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "NonMaxSuppression"): _non_max,
    ("", "NonZero"): _non_zero,
    ("", "TopK"): _top_k,
}

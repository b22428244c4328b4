"""Shapes on the CPU: views of the same bytes, and tensors made from sizes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import F32, F64, I16, I32, I64
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.op import INTERNAL
from sardonyx.place.lowered import Call, Expanded, Lowered, Permuted, Reshaped
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.move import follows

_RANGES: Final = (F32, F64, I16, I32, I64)


def bits_of(number: Any) -> int:
    """The bytes of one element as a signed integer."""
    return int.from_bytes(np.asarray(number).tobytes(), "little", signed=True)


def sizes(node: Node) -> Lowered | No:
    out = node.outputs[0].tensor
    if out.sym is None:
        return No("the sizes are not known")
    return Call("sizes", (), out.sym)


def reshaped(node: Node) -> Lowered:
    return Reshaped(input_of(node, 0))


def reshape(node: Node) -> Lowered:
    x, target, out = input_of(node, 0), input_of(node, 1), node.outputs[0].tensor
    if follows(out.dims, x.tensor.dims, target.tensor.sym):
        return Reshaped(x)
    return Call("reshape_at_run", (x, target), (node.attrs["allowzero"],))


def with_axes(node: Node) -> Lowered | No:
    """Squeeze and Unsqueeze."""
    x, out = input_of(node, 0), node.outputs[0].tensor
    if not follows(out.dims, x.tensor.dims):
        return No("the axes are known only when it runs")
    return Reshaped(x)


def identity(node: Node) -> Lowered:
    x = input_of(node, 0)
    return Permuted(x, tuple(range(x.tensor.rank)))


def expand(node: Node) -> Lowered:
    x, target, out = input_of(node, 0), input_of(node, 1), node.outputs[0].tensor
    if follows(out.dims, x.tensor.dims, target.tensor.sym):
        return Expanded(x)
    return Call("expand_at_run", (x, target))


def constant_of_shape(node: Node) -> Lowered:
    target, out, value = input_of(node, 0), node.outputs[0].tensor, node.attrs["value"]
    bits = 0 if value is None else bits_of(value.read().reshape(-1)[0])
    if target.tensor.sym is None:
        return Call("fill_at_run", (target,), (bits,))
    assert follows(out.dims, target.tensor.sym)
    return Call("fill", (), (bits,))


def eye_like(node: Node) -> Lowered:
    out = node.outputs[0].tensor
    return Call("eye", (), (node.attrs["k"], bits_of(np.ones((), out.dtype.np))))


def range_(node: Node) -> Lowered | No:
    out = node.outputs[0].tensor
    if out.dtype not in _RANGES:
        return No(f"no kernel for {out.dtype}")
    known = tuple(s for slot in range(3) for s in input_of(node, slot).tensor.sym or ())
    is_known = follows(out.dims, known)
    return Call("range" if is_known else "range_at_run", tuple(node.inputs))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "Sizes"): sizes,
    ("", "Shape"): sizes,
    ("", "Size"): sizes,
    ("", "Reshape"): reshape,
    ("", "Flatten"): reshaped,
    ("", "Squeeze"): with_axes,
    ("", "Unsqueeze"): with_axes,
    ("", "Identity"): identity,
    ("", "Expand"): expand,
    ("", "ConstantOfShape"): constant_of_shape,
    ("", "EyeLike"): eye_like,
    ("", "Range"): range_,
}

"""Shape ops on the CPU: views of the same bytes, and tensors computed from sizes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import F32, F64, I16, I32, I64
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.op import INTERNAL
from sardonyx.place.lowered import Call, Expanded, Lowered, Permuted, Reshaped
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings, for_types
from sardonyx.providers.cpu.move import follows


def element_bits(number: Any) -> int:
    """Return the bytes of one element as a signed integer: kernels that fill are untyped."""
    return int.from_bytes(np.asarray(number).tobytes(), "little", signed=True)


def sizes(node: Node) -> Call | No:
    # Inference knows the result as symbolic sizes; the kernel writes them as elements.
    out = node.outputs[0].tensor
    return No("the sizes are not known") if out.sym is None else Call("sizes", (), out.sym)


def reshaped(node: Node) -> Lowered:
    return Reshaped(input_of(node, 0))


def reshape(node: Node) -> Lowered:
    x, target, out = input_of(node, 0), input_of(node, 1), node.outputs[0].tensor
    if follows(out.dims, x.tensor.dims, target.tensor.sym):
        return Reshaped(x)
    return Call("reshape_at_run", (x, target), (node.attrs["allowzero"],))


def with_axes(node: Node) -> Lowered | No:
    """Lower Squeeze and Unsqueeze."""
    x = input_of(node, 0)
    is_known = follows(node.outputs[0].tensor.dims, x.tensor.dims)
    return Reshaped(x) if is_known else No("the axes are known only at run time")


def identity(node: Node) -> Lowered:
    # Not a reshape, which would make strided inputs contiguous.
    x = input_of(node, 0)
    return Permuted(x, tuple(range(x.tensor.rank)))


def expand(node: Node) -> Lowered:
    x, target, out = input_of(node, 0), input_of(node, 1), node.outputs[0].tensor
    if follows(out.dims, x.tensor.dims, target.tensor.sym):
        return Expanded(x)
    return Call("expand_at_run", (x, target))


def constant_of_shape(node: Node) -> Call:
    target, value = input_of(node, 0), node.attrs["value"]
    bits = 0 if value is None else element_bits(value.read().reshape(-1)[0])
    if target.tensor.sym is None:  # a shape that is computed from data
        return Call("fill_at_run", (target,), (bits,))
    return Call("fill", (), (bits,))


def eye_like(node: Node) -> Call:
    one = np.ones((), node.outputs[0].tensor.dtype.np)
    return Call("eye", (), (node.attrs["k"], element_bits(one)))


def range_(node: Node) -> Call:
    # Names of dims in start, limit and delta; without them the length depends on data.
    known = tuple(s for slot in range(3) for s in input_of(node, slot).tensor.sym or ())
    is_known = follows(node.outputs[0].tensor.dims, known)
    return Call("range" if is_known else "range_at_run", node.inputs)


LOWERINGS: Final[Lowerings] = {
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
    ("", "Range"): for_types((F32, F64, I16, I32, I64), range_),
}

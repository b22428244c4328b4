"""Older forms of the ops on shapes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import I64
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, as_scalar, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Reshape", below=5)
def target_becomes_an_input(b: Builder, node: OldNode) -> Any:
    """The shape was an attribute."""
    return b.Reshape(node.needed(0), b.ints(*_needed(node, "shape")))


@upgrade("Squeeze", below=13)
def squeezed_axes_become_an_input(b: Builder, node: OldNode) -> Any:
    """The axes were an attribute."""
    axes = node.attr("axes")
    return b.Squeeze(node.needed(0), None if axes is None else b.ints(*axes))


@upgrade("Unsqueeze", below=13)
def new_axes_become_an_input(b: Builder, node: OldNode) -> Any:
    """The axes were an attribute."""
    return b.Unsqueeze(node.needed(0), b.ints(*_needed(node, "axes")))


def _needed(node: OldNode, name: str) -> tuple[int, ...]:
    numbers = node.attr(name)
    if numbers is None:
        raise InvalidGraph(f"{node.op_type} of opset {node.version} needs the attribute {name}")
    return tuple(numbers)


@upgrade("SampleOp", below=ANY, domain=MICROSOFT)
def sample_op_is_identity(b: Builder, node: OldNode) -> Any:
    return b.Identity(*node.inputs, **node.attrs)


@upgrade("ExpandDims", below=ANY, domain=MICROSOFT)
def axis_is_an_input(b: Builder, node: OldNode) -> Any:
    axis = b.Reshape(b.Cast(node.input(1), to=I64.onnx), b.ints(1))
    return b.Unsqueeze(node.input(0), axis)


@upgrade("Range", below=ANY, domain=MICROSOFT)
def delta_may_be_left_out(b: Builder, node: OldNode) -> Any:
    start, limit, delta = (as_scalar(b, node.input(i)) for i in range(3))
    if delta is None:
        delta = b.CastLike(b.const(np.int64(1)), start)
    return b.Range(start, limit, delta)


UPGRADES: Final = (
    *target_becomes_an_input,
    *squeezed_axes_become_an_input,
    *new_axes_become_an_input,
    *sample_op_is_identity,
    *axis_is_an_input,
    *delta_may_be_left_out,
)

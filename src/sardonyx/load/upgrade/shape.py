"""Upgrades of the ops on shapes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import I64
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades, as_scalar
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("Reshape", below=5)
def reshape_target_becomes_an_input(b: Builder, node: OldNode) -> Any:
    """The shape was an attribute."""
    (shape,) = node.required_attrs("shape")
    return b.Reshape(node.required_input(0), b.ints(*shape))


@UPGRADES.rule("Squeeze", below=13)
def squeezed_axes_become_an_input(b: Builder, node: OldNode) -> Any:
    """The axes were an attribute."""
    axes = node.attr("axes")
    return b.Squeeze(node.required_input(0), None if axes is None else b.ints(*axes))


@UPGRADES.rule("Unsqueeze", below=13)
def unsqueezed_axes_become_an_input(b: Builder, node: OldNode) -> Any:
    """The axes were an attribute."""
    (axes,) = node.required_attrs("axes")
    return b.Unsqueeze(node.required_input(0), b.ints(*axes))


@UPGRADES.rule("SampleOp", domain=MICROSOFT)
def sample_op_is_identity(b: Builder, node: OldNode) -> Any:
    return b.Identity(*node.inputs, **node.attrs)


@UPGRADES.rule("ExpandDims", domain=MICROSOFT)
def expand_dims_is_unsqueeze(b: Builder, node: OldNode) -> Any:
    axis = b.Reshape(b.Cast(node.input(1), to=I64.onnx), b.ints(1))
    return b.Unsqueeze(node.input(0), axis)


@UPGRADES.rule("Range", domain=MICROSOFT)
def contrib_range(b: Builder, node: OldNode) -> Any:
    """The inputs may have the shape [1], and the delta is 1 by default."""
    start, limit, delta = (as_scalar(b, node.input(i)) for i in range(3))
    if delta is None:
        delta = b.CastLike(b.const(np.int64(1)), start)
    return b.Range(start, limit, delta)

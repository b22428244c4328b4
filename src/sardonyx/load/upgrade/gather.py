"""Older forms of the ops that read or write at indices."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.dtype import I64
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder

_EVERY: Final = 2**31  # later than any opset: the op is gone for good


@upgrade("Scatter", below=_EVERY)
def scatter_has_a_new_name(b: Builder, node: OldNode) -> Any:
    """The same op, before there were several kinds of scattering."""
    return b.ScatterElements(*node.inputs, axis=node.attr("axis", 0))


@upgrade("OneHot", below=11)
def negative_indices_were_off(b: Builder, node: OldNode) -> Any:
    """An index below zero gave a row without a one; today it counts from the end."""
    indices, depth, values = node.given(3)
    indices, depth = b.Cast(indices, to=I64.onnx), b.Cast(depth, to=I64.onnx)
    depth = b.Reshape(depth, b.ints())
    none = b.const(0, I64)
    indices = b.Where(b.Less(indices, none), depth, indices)
    return b.OneHot(indices, depth, values, axis=node.attr("axis", -1))


@upgrade("GatherND", below=ANY, domain=MICROSOFT)
def indices_may_be_short(b: Builder, node: OldNode) -> Any:
    return b.GatherND(node.input(0), b.Cast(node.input(1), to=I64.onnx))


@upgrade("TorchEmbedding", below=ANY, domain=MICROSOFT)
def table_lookup(b: Builder, node: OldNode) -> Any:
    """What follows the first two inputs is for training."""
    return b.Gather(*node.inputs[:2])


UPGRADES: Final = (
    *scatter_has_a_new_name,
    *negative_indices_were_off,
    *indices_may_be_short,
    *table_lookup,
)

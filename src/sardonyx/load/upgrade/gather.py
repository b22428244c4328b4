"""Upgrades of the ops that gather or scatter by indices."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.dtype import I64
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades, as_scalar
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("Scatter")
def scatter_is_scatter_elements(b: Builder, node: OldNode) -> Any:
    """Opset 11 renamed Scatter to ScatterElements."""
    return b.ScatterElements(*node.inputs, axis=node.attr("axis", 0))


@UPGRADES.rule("OneHot", below=11)
def negative_indices_are_out_of_range(b: Builder, node: OldNode) -> Any:
    """A negative index gave only off values before opset 11, and counts from the end since."""
    indices, depth, values = node.checked_inputs(3)
    indices = b.Cast(indices, to=I64.onnx)
    depth = as_scalar(b, b.Cast(depth, to=I64.onnx))
    # The index `depth` is out of range as well, and stays so.
    indices = b.Where(b.Less(indices, b.const(0, I64)), depth, indices)
    return b.OneHot(indices, depth, values, axis=node.attr("axis", -1))


@UPGRADES.rule("GatherND", domain=MICROSOFT)
def gather_nd_with_int32_indices(b: Builder, node: OldNode) -> Any:
    return b.GatherND(node.input(0), b.Cast(node.input(1), to=I64.onnx))


@UPGRADES.rule("TorchEmbedding", domain=MICROSOFT)
def embedding_is_gather(b: Builder, node: OldNode) -> Any:
    """Only the first two inputs, table and indices, matter for inference."""
    return b.Gather(*node.inputs[:2])

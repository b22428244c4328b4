"""Weights of float32 convolutions and matmuls that are stored quantized, dequantized once."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.const import Recipe
from sardonyx.graph.constant_values import constant
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL, ONNX
from sardonyx.passes.options import PassOptions
from sardonyx.passes.replace import drop, replace_value

# Bytes of float weights, which stay in memory; larger ones are dequantized in each run.
_MAX_BYTES: Final = 4 << 20
_WEIGHTS: Final = 1  # the input of these ops that kernels read packed
_READERS: Final = frozenset((INTERNAL, op) for op in ("Conv", "ConvTranspose", "MatMul"))


def dequantize_weights(graph: Graph, options: PassOptions) -> None:
    """Make dequantized constants constants, where kernels pack them when the session starts."""
    limit = min(options.fold_limit_bytes, _MAX_BYTES)
    for each in list(graph.family()):
        for node in list(each.nodes):
            if node.op.key == (ONNX, "DequantizeLinear") and (new := _weights(node, limit)):
                replace_value(each, node.outputs[0], new)
                drop(each, [node])


def _weights(node: Node, limit: int) -> Value | None:
    """The constant for a DequantizeLinear of weights; None if it is for something else."""
    (value,) = node.outputs
    consts = tuple(None if v is None else v.const for v in node.inputs)
    is_const = all((v is None) == (c is None) for v, c in zip(node.inputs, consts, strict=True))
    is_read = not value.n_exits and all(
        reader.op.key in _READERS and slot == _WEIGHTS for reader, slot in value.uses
    )
    shape = value.tensor.static
    if not is_const or not is_read or shape is None:
        return None
    recipe = Recipe(node.op, consts, node.attrs, 0, (value.tensor.dtype, shape))
    return constant(recipe) if recipe.size_bytes <= limit else None

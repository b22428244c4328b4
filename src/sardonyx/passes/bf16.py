"""The bf16 precision option: marks matmuls whose operands may be rounded to bfloat16."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.graph import Graph
from sardonyx.graph.op import INTERNAL

# Conv and Attention compute matmuls too.
_MATMULS: Final = frozenset((INTERNAL, name) for name in ("Attention", "Conv", "MatMul"))
_TYPES: Final = (F32, F16, BF16)


def mark_bf16(graph: Graph) -> None:
    """Set the attribute `bf16` of matmuls, in a graph and its bodies.

    A kernel with bfloat16 instructions then rounds both operands; accumulators stay float32.
    """
    for node in graph.all_nodes():
        x = node.inputs[0] if node.op.key in _MATMULS else None
        # float64 and integers are multiplied exactly.
        if x is not None and x.tensor.dtype in _TYPES:
            node.attrs = {**node.attrs, "bf16": 1}

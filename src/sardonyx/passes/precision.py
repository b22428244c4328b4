"""Products whose sides are rounded to bf16, where a session prefers speed to exactness."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.graph import Graph
from sardonyx.graph.op import INTERNAL

_ROUNDED: Final = frozenset((INTERNAL, name) for name in ("Attention", "Conv", "MatMul"))
_TYPES: Final = (F32, F16, BF16)


def round_products(graph: Graph) -> None:
    """Marks the products, in a graph and its bodies; a provider may round the sides of these."""
    for node in graph.all_nodes():
        x = node.inputs[0] if node.op.key in _ROUNDED else None
        if x is not None and x.tensor.dtype in _TYPES:
            node.attrs = {**node.attrs, "bf16": 1}

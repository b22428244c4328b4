"""What comes before the backward part: sequences, optionals and branches that need not be there."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import infer
from sardonyx.passes.driver import Rewriter
from sardonyx.passes.pipeline import SEQUENCES
from sardonyx.passes.rule import by_root

# Constants and equal nodes stay as they are: gradients may be asked for by any of them.
_DISABLED: Final = frozenset(("CommonSubexpressionElimination", "ConstantFolding"))


def prepare(graph: Graph) -> None:
    """Infers a graph; tensors that pass through sequences of known elements go past them.

    Likewise what an optional holds, and the branch of an If whose condition is known. Gradients
    flow through tensors only.
    """
    infer(graph, assumes=False)
    ops = {node.op.name for node in graph.all_nodes()}
    if not ops.isdisjoint((*SEQUENCES, "If")):
        from sardonyx.passes import sequences  # few models have any

        rules = by_root(sequences.RULES)
        Rewriter(graph, rules, fold_limit=0, disabled=_DISABLED, is_clean=True).run()

"""Fusion of RMS norms, as exporters write them, into SimplifiedLayerNormalization."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.graph import Graph, Node, Value, optional_input
from sardonyx.ops.builder import Builder
from sardonyx.passes.driver import Rewriter
from sardonyx.passes.rule import P, by_root, hole, need, present, ranked, rule, scalar

_FOLD_LIMIT: Final = 1 << 30

x, eps, scale = hole("x"), hole("eps"), hole("scale")
_roots = tuple(
    P.Sqrt(P.ReduceMean(square, rest=True).named("mean") + eps) for square in (P.Pow(x, 2.0), x * x)
)
_normalized = tuple(
    form for root in _roots for form in (x / root, x * P.Reciprocal(root), x * P.Div(1.0, root))
)


@rule(*(norm * scale for norm in _normalized), aliases="SimplifiedLayerNormFusion")
def rms_norm(b: Builder, x: Value, eps: Value, scale: Value, mean: Node) -> Value:
    """x / sqrt(mean of x^2 + eps) * scale over the last dim."""
    ranked(x, scale)
    axes = present(optional_input(mean, 1), "all dims are reduced").tensor.ints
    last = x.tensor.rank - 1
    need(axes in ((-1,), (last,)) and mean.attrs["keepdims"], "not over the last dim")
    need(scale.tensor.shape == x.tensor.dims[-1:], "the scale is not a vector of the last dim")
    number = present(scalar(eps), "epsilon is not a constant")
    return b.SimplifiedLayerNormalization(x, scale, like=x, axis=-1, epsilon=number)


RULES: Final[tuple[Any, ...]] = rms_norm


def fuse_rms_norms(graph: Graph) -> None:
    """Apply the rule in a graph and its bodies."""
    Rewriter(graph, by_root(RULES), _FOLD_LIMIT, frozenset()).run()

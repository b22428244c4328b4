"""Lowering: what only our own ops can say."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.build import Builder
from sardonyx.graph.dim import lone_name, symbols
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.ops.declare import INTERNAL
from sardonyx.ops.internal import sizes_fact
from sardonyx.passes.pattern import P, hole
from sardonyx.passes.rule import need, ranked, rule

x, w, bias = hole("x"), hole("w"), hole("bias")


@rule(P.MatMul(x, w) + bias)
def matmul_bias(b: Builder, x: Value, w: Value, bias: Value) -> Value:
    """Rows times a constant matrix, plus one number per column."""
    ranked(x, w)
    need(
        w.is_const and w.tensor.rank == 2 and x.tensor.rank > 1,
        "the weight is not a constant matrix",
    )
    need(
        bias.is_const and bias.tensor.shape == w.tensor.dims[1:],
        "the bias is not one number per column",
    )
    need(x.tensor.dtype.is_float and x.tensor.dtype.bits >= 32, "rounds differently in half types")
    made: Value = b.MatMulBias(x, w, bias, domain=INTERNAL)
    return made


RULES: Final[tuple[Any, ...]] = matmul_bias


def lower_sizes(graph: Graph) -> None:
    """Computes integer tensors that follow from the inputs' shapes when these are bound.

    Whole chains of Shape, Gather, Concat and arithmetic end in one node that reads nothing.
    """
    bound = {
        lone_name(d) for v in graph.inputs if isinstance(v.fact, Fact) for d in v.fact.shape or ()
    }
    made: dict[Fact, Value] = {}
    for node in list(graph.nodes):
        if len(node.outputs) != 1 or node.op.domain == INTERNAL or node.op.has_bodies:
            continue
        value = node.outputs[0]
        fact = value.fact
        if (
            not isinstance(fact, Fact)
            or fact.sym is None
            or fact.static is None
            or fact.const is not None
        ):
            continue
        if all(symbols(s) <= bound for s in fact.sym):
            key = sizes_fact(fact)
            if key not in made:
                made[key] = Builder(graph, graph.scope).Sizes(domain=INTERNAL, fact=key)
                made[key].name, value.name = value.name, ""
            graph.replace(value, made[key])

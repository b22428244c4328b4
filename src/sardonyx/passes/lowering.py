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


def lower_targets(graph: Graph) -> None:
    """Gives a Reshape whose target has a -1 beside open sizes the whole shape that inference found.

    A size that is 0 in a run would leave the -1 undetermined, and inference knew what it is.
    """
    bound = _bound(graph)
    for node in list(graph.nodes):
        if node.op.name != "Reshape" or node.op.domain or node.inputs[1] is None:
            continue
        target, fact = node.inputs[1].fact, node.outputs[0].fact
        if not isinstance(target, Fact) or not isinstance(fact, Fact) or target.sym is None:
            continue
        if -1 in target.sym and target.ints is None and all(symbols(d) <= bound for d in fact.dims):
            whole = sizes_fact(Fact(target.dtype, target.shape, None, fact.shape))
            made = Builder(graph, graph.scope).Sizes(domain=INTERNAL, fact=whole)
            graph.set_input(node, 1, made)
            node.attrs = {**node.attrs, "allowzero": 1}


def _bound(graph: Graph) -> set[str | None]:
    """The names that the shapes of a graph's inputs give sizes to."""
    facts = (v.fact for v in graph.inputs)
    return {lone_name(d) for f in facts if isinstance(f, Fact) for d in f.shape or ()}


def lower_sizes(graph: Graph) -> None:
    """Computes integer tensors that follow from the inputs' shapes when these are bound.

    Whole chains of Shape, Gather, Concat and arithmetic end in one node that reads nothing.
    """
    bound = _bound(graph)
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

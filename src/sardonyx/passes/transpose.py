"""Transposes: two are one, one that moves nothing is none."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.graph import Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.passes.pattern import P, hole
from sardonyx.passes.rule import need, rule

x = hole("x")


def order_of(node: Node) -> tuple[int, ...]:
    """The permutation of a Transpose; dims are reversed where none is given."""
    perm, shape = node.attrs["perm"], node.outputs[0].tensor.shape
    need(perm is not None or shape is not None, "the rank is open")
    return tuple(perm) if perm is not None else tuple(reversed(range(len(shape or ()))))


@rule(P.Transpose(P.Transpose(x).named("inner")).named("outer"), ort="TransposeOptimizer")
def transpose_twice(b: Builder, x: Value, inner: Node, outer: Node) -> Value:
    need(x.tensor.shape is not None, "the rank is open, and an order may not fit it")
    first, second = order_of(inner), order_of(outer)
    together = tuple(first[i] for i in second)
    if together == tuple(range(len(together))):
        return x
    made: Value = b.Transpose(x, perm=together)
    return made


@rule(P.Transpose(x).named("node"), ort="TransposeOptimizer")
def transpose_nothing(b: Builder, x: Value, node: Node) -> Value:
    need(x.tensor.shape is not None, "the rank is open, and the order may not fit it")
    perm = order_of(node)
    need(perm == tuple(range(len(perm))), "dims move")
    return x


RULES: Final[tuple[Any, ...]] = (*transpose_twice, *transpose_nothing)

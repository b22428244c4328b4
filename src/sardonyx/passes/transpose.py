"""Transpose rules: combine two consecutive Transposes, remove identity permutations."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.graph import Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.passes.pattern import P, hole
from sardonyx.passes.rule import need, rule

x = hole("x")


def permutation_of(node: Node) -> tuple[int, ...]:
    """The permutation of a Transpose; without `perm` it reverses the dims."""
    perm, shape = node.attrs["perm"], node.outputs[0].tensor.shape
    need(perm is not None or shape is not None, "the rank is unknown")
    # ONNX: the default reverses the dims.
    return tuple(perm) if perm is not None else tuple(reversed(range(len(shape or ()))))


@rule(P.Transpose(P.Transpose(x).named("inner")).named("outer"), aliases="TransposeOptimizer")
def transpose_twice(b: Builder, x: Value, inner: Node, outer: Node) -> Value:
    """Combine two Transposes; permutations that undo each other vanish."""
    need(x.tensor.shape is not None, "the rank is unknown, so a permutation may not fit it")
    first, second = permutation_of(inner), permutation_of(outer)
    # Axis i of the result is axis second[i] of the inner result, which is first[second[i]] of x.
    combined = tuple(first[i] for i in second)
    if combined == tuple(range(len(combined))):
        return x
    return b.Transpose(x, perm=combined)


@rule(P.Transpose(x).named("node"), aliases="TransposeOptimizer")
def transpose_nothing(b: Builder, x: Value, node: Node) -> Value:
    """Remove a Transpose with the identity permutation."""
    need(x.tensor.shape is not None, "the rank is unknown, so the permutation may not fit it")
    perm = permutation_of(node)
    need(perm == tuple(range(len(perm))), "it permutes dims")
    return x


# Pairs before identities: the combination of two may be an identity.
RULES: Final[tuple[Any, ...]] = (*transpose_twice, *transpose_nothing)

"""Einsum of two operands with one summed letter is a matrix product of turned views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sardonyx.graph.build import Builder
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.linear import Equation, Label
from sardonyx.ops.product import TYPES
from sardonyx.passes.pattern import P, hole
from sardonyx.passes.rule import need, ranked, rule

ROW: Final[Label] = "row"  # of an operand that has no letter of its own


def _arranged(b: Builder, x: Value, term: Sequence[Label], order: Sequence[Label]) -> Value:
    """An operand with its axes in an order, and an axis of one element for letters it lacks."""
    perm = tuple(term.index(label) for label in order if label in term)
    turned = x if perm == tuple(range(len(perm))) else b.Transpose(x, perm=perm)
    missing = [i for i, label in enumerate(order) if label not in term]
    made: Value = b.Unsqueeze(turned, b.ints(*missing)) if missing else turned
    return made


def _letters(left: Value, right: Value, terms: Sequence[Sequence[Label]], output: Any) -> Label:
    """The one letter that is summed over; says no to all that a product cannot do."""
    first, second = terms
    need(len(set(first)) == len(first) and len(set(second)) == len(second), "a diagonal")
    sizes = dict(zip(second, right.tensor.dims, strict=True))
    for label, size in zip(first, left.tensor.dims, strict=True):
        need(sizes.get(label, size) == size, "sizes may differ")
    summed = [label for label in dict.fromkeys((*first, *second)) if label not in output]
    need(len(summed) == 1, "not one letter is summed over")
    need(summed[0] in first and summed[0] in second, "sums over one operand")
    return summed[0]


@rule(P.Einsum(hole("left"), hole("right")).named("node"))
def einsum_product(b: Builder, left: Value, right: Value, node: Node) -> Value:
    """Letters that only one operand has are rows or columns; all but the last are batches."""
    ranked(left, right)
    need(left.tensor.dtype in TYPES, "no product of this type")
    parsed = Equation(node.attrs["equation"], [left.tensor.rank, right.tensor.rank])
    (first, second), output = parsed.terms, parsed.output
    k = _letters(left, right, parsed.terms, output)
    rows = [c for c in output if c not in second] or [ROW]
    columns = [c for c in output if c not in first] or [ROW]
    i, j = rows[-1], columns[-1]
    batch = [c for c in output if c not in (i, j)]
    y = b.MatMul(
        _arranged(b, left, first, (*batch, i, k)), _arranged(b, right, second, (*batch, k, j))
    )
    alone = [axis for axis, label in ((-2, i), (-1, j)) if label == ROW]
    if alone:
        y = b.Squeeze(y, b.ints(*alone))
    made = [*batch, *(c for c in (i, j) if c != ROW)]
    return _arranged(b, y, made, output)


RULES: Final[tuple[Any, ...]] = einsum_product

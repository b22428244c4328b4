"""Einsum as reductions, elementwise products and batched matmuls, operand by operand.

Operands are contracted from left to right. For each pair, labels of both that are summed over
become the inner dim of a matmul, the last label that only one of them has its rows or columns, and
all others its batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BF16, F16, F32, I8, I16, I32, U8, U16, U32
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.ops.matmul.standard import TYPES, Equation, Label
from sardonyx.passes.rule import P, hole, known_size, need, ranked, rule

NO_LABEL: Final[Label] = "row"  # the axis of size 1 of an operand without rows or columns
END: Final = (1 << 63) - 1
# Wider types of intermediate results, so that the final result is rounded only once.
WORK: Final = {F16: F32, BF16: F32, I8: I32, I16: I32, U8: U32, U16: U32}


@frozen
class Term:
    """An operand, with the label of each of its axes."""

    value: Value
    labels: tuple[Label, ...]


def _permuted(b: Builder, term: Term, order: Sequence[Label]) -> Value:
    """An operand with its axes in this order of labels; missing labels get axes of size 1."""
    perm = tuple(term.labels.index(label) for label in order if label in term.labels)
    is_permuted = perm != tuple(range(len(perm)))
    transposed = b.Transpose(term.value, perm=perm) if is_permuted else term.value
    missing = [i for i, label in enumerate(order) if label not in term.labels]
    return b.Unsqueeze(transposed, b.ints(*missing)) if missing else transposed


def _diagonal(b: Builder, term: Term) -> Term:
    """An operand whose repeated labels are replaced by the diagonal over their axes."""
    for label in dict.fromkeys(term.labels):
        while term.labels.count(label) > 1:
            first = term.labels.index(label)
            pair = (first, term.labels.index(label, first + 1))
            others = [i for i in range(len(term.labels)) if i not in pair]
            size = known_size(term.value.tensor.dims[first], "the diagonal's length is unknown")
            need(size > 0, "the diagonal is empty")
            # The diagonal of a flattened square matrix is every (size + 1)-th element.
            y = b.Transpose(term.value, perm=(*others, *pair))
            y = b.Reshape(y, b.ints(*([0] * len(others)), size * size))
            y = b.Slice(y, b.ints(0), b.ints(END), b.ints(len(others)), b.ints(size + 1))
            term = Term(y, (*(term.labels[i] for i in others), label))
    return term


def _summed(b: Builder, term: Term, remaining: Collection[Label]) -> Term:
    """An operand summed over the labels that nothing else needs."""
    axes = [i for i, label in enumerate(term.labels) if label not in remaining]
    if not axes:
        return term
    y = b.ReduceSum(term.value, b.ints(*axes), keepdims=0)
    return Term(y, tuple(label for label in term.labels if label in remaining))


def _without_ones(b: Builder, term: Term, other: Term) -> Term:
    """An operand without axes of size 1 that broadcast against the other operand."""
    # ONNX lets labelled axes of size 1 broadcast, as numpy does.
    sizes = dict(zip(other.labels, other.value.tensor.dims, strict=True))
    axes = []
    for i, (label, size) in enumerate(zip(term.labels, term.value.tensor.dims, strict=True)):
        if sizes.get(label, size) != size:
            need(size == 1 or sizes[label] == 1, "sizes may differ")
            axes += [i] if size == 1 else []
    if not axes:
        return term
    y = b.Squeeze(term.value, b.ints(*axes))
    return Term(y, tuple(c for i, c in enumerate(term.labels) if i not in axes))


def _flattened(b: Builder, term: Term, order: Sequence[Label], summed: Sequence[Label]) -> Value:
    """An operand in this order of labels, with the summed labels flattened into a last axis."""
    y = _permuted(b, term, (*order, *summed))
    return y if len(summed) == 1 else b.Reshape(y, b.ints(*([0] * len(order)), -1))


def _contracted(b: Builder, left: Term, right: Term, remaining: Sequence[Label]) -> Term:
    """The product of two operands, summed over labels that are not among the remaining ones."""
    left, right = _without_ones(b, left, right), _without_ones(b, right, left)
    # What only one operand has is summed before the product: the matmul gets smaller.
    left = _summed(b, left, {*remaining, *right.labels})
    right = _summed(b, right, {*remaining, *left.labels})
    summed = [c for c in left.labels if c in right.labels and c not in remaining]
    order = [c for c in remaining if c in left.labels or c in right.labels]
    if not summed:
        y = b.Mul(_permuted(b, left, order), _permuted(b, right, order))
        return Term(y, tuple(order))
    return _matmul(b, left, right, order, summed)


def _matmul(
    b: Builder, left: Term, right: Term, order: Sequence[Label], summed: Sequence[Label]
) -> Term:
    """The batched matmul of two operands over the summed labels."""
    # i labels the rows, j the columns: the last label that only one operand has.
    i = ([c for c in order if c not in right.labels] or [NO_LABEL])[-1]
    j = ([c for c in order if c not in left.labels] or [NO_LABEL])[-1]
    batch = [c for c in order if c not in (i, j)]
    rows = _flattened(b, left, (*batch, i), summed)
    if len(summed) == 1:
        columns = _permuted(b, right, (*batch, *summed, j))
    else:
        # Flattened last, then transposed: the matmul folds the Transpose into its flag.
        n = len(batch)
        transposed = _flattened(b, right, (*batch, j), summed)
        columns = b.Transpose(transposed, perm=(*range(n), n + 1, n))
    y = b.MatMul(rows, columns)
    unlabelled = [axis for axis, label in ((-2, i), (-1, j)) if label == NO_LABEL]
    if unlabelled:
        y = b.Squeeze(y, b.ints(*unlabelled))
    return Term(y, (*batch, *(c for c in (i, j) if c != NO_LABEL)))


def _rounds_once(terms: Sequence[Term], output: Sequence[Label]) -> bool:
    """Whether one op computes the result, so that no wider type is needed in between."""
    # Two operands, and no label to sum over before or after their product.
    return len(terms) == 2 and set(terms[0].labels) ^ set(terms[1].labels) <= set(output)


@rule(P.Einsum(hole("first"), rest=True).named("node"))
def einsum(b: Builder, first: Value, node: Node) -> Value:
    """Contract the operands from left to right; sum over labels once nothing needs them."""
    inputs = [v for v in node.inputs if v is not None]
    ranked(*inputs)
    parsed = Equation(node.attrs["equation"], [v.tensor.rank for v in inputs])
    terms = [Term(v, labels) for v, labels in zip(inputs, parsed.terms, strict=True)]
    dtype = first.tensor.dtype
    is_direct = dtype in TYPES and _rounds_once(terms, parsed.output)
    work = dtype if is_direct else WORK.get(dtype, dtype)
    need(work in TYPES, "no matmul kernel for this type")
    if work is not dtype:
        terms = [Term(b.Cast(t.value, to=work.onnx), t.labels) for t in terms]
    terms = [_diagonal(b, t) for t in terms]
    result = terms[0]
    # Labels of later operands stay until these are contracted.
    for n, term in enumerate(terms[1:], 2):
        later = [c for t in terms[n:] for c in t.labels if c not in parsed.output]
        result = _contracted(b, result, term, tuple(dict.fromkeys((*parsed.output, *later))))
    y = _permuted(b, _summed(b, result, parsed.output), parsed.output)
    if y is first:  # an equation such as i->i
        y = b.Identity(y)
    return y if work is dtype else b.Cast(y, to=dtype.onnx)


RULES: Final[tuple[Any, ...]] = einsum

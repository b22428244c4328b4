"""Einsum as sums, products and matrix products of turned views, operand by operand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BF16, F16, F32, I8, I16, I32, U8, U16, U32
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.ops.matmul.internal import TYPES
from sardonyx.ops.matmul.standard import Equation, Label
from sardonyx.passes.pattern import P, hole
from sardonyx.passes.rule import need, ranked, rule

ROW: Final[Label] = "row"  # of an operand that has no letter of its own
END: Final = (1 << 63) - 1
# Types in which sums are rounded only once, and which kernels have.
WORK: Final = {F16: F32, BF16: F32, I8: I32, I16: I32, U8: U32, U16: U32}


@frozen
class Term:
    """A value, and the letter that each of its axes stands for."""

    value: Value
    labels: tuple[Label, ...]


def _arranged(b: Builder, term: Term, order: Sequence[Label]) -> Value:
    """An operand with its axes in an order, and an axis of one element for letters it lacks."""
    perm = tuple(term.labels.index(label) for label in order if label in term.labels)
    is_turned = perm != tuple(range(len(perm)))
    turned = b.Transpose(term.value, perm=perm) if is_turned else term.value
    missing = [i for i, label in enumerate(order) if label not in term.labels]
    made: Value = b.Unsqueeze(turned, b.ints(*missing)) if missing else turned
    return made


def _diagonal(b: Builder, term: Term) -> Term:
    """A letter twice is a diagonal: the two axes as one, in steps of one row and one element."""
    for label in dict.fromkeys(term.labels):
        while term.labels.count(label) > 1:
            first = term.labels.index(label)
            pair = (first, term.labels.index(label, first + 1))
            others = [i for i in range(len(term.labels)) if i not in pair]
            size = term.value.tensor.dims[first]
            need(isinstance(size, int) and size > 0, "a diagonal of unknown length")
            assert isinstance(size, int)
            y = b.Transpose(term.value, perm=(*others, *pair))
            y = b.Reshape(y, b.ints(*([0] * len(others)), size * size))
            y = b.Slice(y, b.ints(0), b.ints(END), b.ints(len(others)), b.ints(size + 1))
            term = Term(y, (*(term.labels[i] for i in others), label))
    return term


def _summed(b: Builder, term: Term, kept: Collection[Label]) -> Term:
    """Without the letters that nothing else needs."""
    axes = [i for i, label in enumerate(term.labels) if label not in kept]
    if not axes:
        return term
    y = b.ReduceSum(term.value, b.ints(*axes), keepdims=0)
    return Term(y, tuple(label for label in term.labels if label in kept))


def _without_ones(b: Builder, term: Term, other: Term) -> Term:
    """Without axes of one element that stand for as many as the other operand has."""
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


def _merged(b: Builder, term: Term, order: Sequence[Label], summed: Sequence[Label]) -> Value:
    """An operand in an order, and behind that all of the summed letters as one axis."""
    y = _arranged(b, term, (*order, *summed))
    if len(summed) == 1:
        return y
    made: Value = b.Reshape(y, b.ints(*([0] * len(order)), -1))
    return made


def _contracted(b: Builder, left: Term, right: Term, kept: Sequence[Label]) -> Term:
    """Two operands as one; `kept` are the letters to stay, in the order that is best."""
    left, right = _without_ones(b, left, right), _without_ones(b, right, left)
    left = _summed(b, left, {*kept, *right.labels})
    right = _summed(b, right, {*kept, *left.labels})
    summed = [c for c in left.labels if c in right.labels and c not in kept]
    order = [c for c in kept if c in left.labels or c in right.labels]
    if not summed:
        y = b.Mul(_arranged(b, left, order), _arranged(b, right, order))
        return Term(y, tuple(order))
    # Letters that only one operand has are rows or columns; all but the last are batches.
    i = ([c for c in order if c not in right.labels] or [ROW])[-1]
    j = ([c for c in order if c not in left.labels] or [ROW])[-1]
    batch = [c for c in order if c not in (i, j)]
    rows = _merged(b, left, (*batch, i), summed)
    if len(summed) == 1:
        columns = _arranged(b, right, (*batch, *summed, j))
    else:
        n = len(batch)
        turned = _merged(b, right, (*batch, j), summed)
        columns = b.Transpose(turned, perm=(*range(n), n + 1, n))
    y = b.MatMul(rows, columns)
    alone = [axis for axis, label in ((-2, i), (-1, j)) if label == ROW]
    if alone:
        y = b.Squeeze(y, b.ints(*alone))
    return Term(y, (*batch, *(c for c in (i, j) if c != ROW)))


def _is_exact(terms: Sequence[Term], output: Sequence[Label]) -> bool:
    """Whether no more than one step rounds."""
    letters = [set(t.labels) for t in terms]
    return len(terms) == 2 and letters[0] ^ letters[1] <= set(output)


@rule(P.Einsum(hole("first"), rest=True).named("node"))
def einsum(b: Builder, first: Value, node: Node) -> Value:
    """From left to right; letters that nothing needs any more are summed over at once."""
    inputs = [v for v in node.inputs if v is not None]
    ranked(*inputs)
    parsed = Equation(node.attrs["equation"], [v.tensor.rank for v in inputs])
    terms = [Term(v, labels) for v, labels in zip(inputs, parsed.terms, strict=True)]
    dtype = first.tensor.dtype
    work = dtype if dtype in TYPES and _is_exact(terms, parsed.output) else WORK.get(dtype, dtype)
    need(work in TYPES, "no product of this type")
    if work is not dtype:
        terms = [Term(b.Cast(t.value, to=work.onnx), t.labels) for t in terms]
    terms = [_diagonal(b, t) for t in terms]
    made = terms[0]
    for n, term in enumerate(terms[1:], 2):
        later = [c for t in terms[n:] for c in t.labels if c not in parsed.output]
        made = _contracted(b, made, term, tuple(dict.fromkeys((*parsed.output, *later))))
    y = _arranged(b, _summed(b, made, parsed.output), parsed.output)
    if y is first:
        y = b.Identity(y)
    return y if work is dtype else b.Cast(y, to=dtype.onnx)


RULES: Final[tuple[Any, ...]] = einsum

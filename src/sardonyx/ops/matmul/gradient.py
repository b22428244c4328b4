"""Gradients of matrix products."""

from __future__ import annotations

import string

from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, gradient, ranked
from sardonyx.ops.matmul.contrib import operand_permutation

Grads = list[Value | None]


@gradient("MatMul")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, w = input_of(node, 0), input_of(node, 1)
    left, right = _matrix(b, x, 0), _matrix(b, w, 1)
    if ranked(x).rank == 1:
        dy = b.Unsqueeze(dy, b.ints(-2 if ranked(w).rank > 1 else -1))
    if ranked(w).rank == 1:
        dy = b.Unsqueeze(dy, b.ints(-1))
    dx = dw = None
    if b.wants(x):
        dx = b.reshape(b.sum_to(b.MatMul(dy, b.transposed(right)), left), x)
    if b.wants(w):
        dw = b.reshape(_weights(b, left, right, dy), w)
    return [dx, dw]


def _matrix(b: GradientBuilder, x: Value, axis: int) -> Value:
    """Unsqueeze a vector to a row or column matrix; matrices are unchanged."""
    return b.Unsqueeze(x, b.ints(axis)) if ranked(x).rank == 1 else x


def _weights(b: GradientBuilder, left: Value, right: Value, dy: Value) -> Value:
    """Return dW by one matmul over all rows, rather than a batched matmul and a sum."""
    if ranked(right).rank == 2 and ranked(left).rank > 2:
        left, dy = _flatten_batch(b, left), _flatten_batch(b, dy)
    return b.sum_to(b.MatMul(b.transposed(left), dy), right)


def _flatten_batch(b: GradientBuilder, x: Value) -> Value:
    """Reshape [..., rows, width] to [-1, width]."""
    width = b.Slice(b.shape(x), b.ints(-1), b.ints(ranked(x).rank))
    return b.Reshape(x, b.Concat(b.ints(-1), width, axis=0))


@gradient("Gemm")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, w, *rest = node.inputs
    alpha, beta = node.attrs["alpha"], node.attrs["beta"]
    trans_a, trans_b = node.attrs["transA"], node.attrs["transB"]
    grads: Grads = [None, None]
    # dA = dY B^T and dB = A^T dY; the gradient of a transposed operand is the transpose of that.
    if b.wants(x):
        if trans_a:
            grads[0] = b.Gemm(w, dy, alpha=alpha, transA=trans_b, transB=1)
        else:
            grads[0] = b.Gemm(dy, w, alpha=alpha, transB=1 - trans_b)
    if b.wants(w):
        if trans_b:
            grads[1] = b.Gemm(dy, x, alpha=alpha, transA=1, transB=trans_a)
        else:
            grads[1] = b.Gemm(x, dy, alpha=alpha, transA=1 - trans_a)
    for c in rest:
        if c is not None and b.wants(c):
            grads.append(b.sum_to(dy if beta == 1 else b.Mul(dy, beta), c))
    return grads


@gradient("Einsum")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    """Each operand's gradient is the einsum of dy and the others onto its own letters."""
    operands = [input_of(node, i) for i in range(len(node.inputs))]
    terms, out = _terms(node, [ranked(x).rank for x in operands])
    grads: Grads = []
    for i, x in enumerate(operands):
        others = [j for j in range(len(operands)) if j != i]
        used = set(out).union(*(terms[j] for j in others))
        shared = "".join(letter for letter in dict.fromkeys(terms[i]) if letter in used)
        equation = f"{','.join([out, *(terms[j] for j in others)])}->{shared}"
        grad = b.Einsum(dy, *(operands[j] for j in others), equation=equation.encode())
        # Letters that only this operand has: its gradient is constant along them. Repeated letters
        # read a diagonal, where the gradient is added.
        alone = [a for a, c in enumerate(terms[i]) if c not in used or c in terms[i][:a]]
        if alone:
            grad = b.Unsqueeze(grad, b.ints(*alone))
        if (diagonal := _diagonal(b, terms[i], x)) is not None:
            grad = b.where(diagonal, grad)
        grads.append(_broadcast_to(b, grad, x))
    return grads


def _broadcast_to(b: GradientBuilder, grad: Value, x: Value) -> Value:
    """Sum a gradient over axes where x has size 1, and repeat it along those where it has 1."""
    pairs = zip(ranked(grad).dims, ranked(x).dims, strict=True)
    ones = [i for i, (size, full) in enumerate(pairs) if full == 1 and size != 1]
    if ones:
        grad = b.ReduceSum(grad, b.ints(*ones), keepdims=1)
    # Expand broadcasts both ways: sizes that are 1 only at run time are summed after it.
    return b.sum_to(b.expand(grad, x), x)


def _terms(node: Node, ranks: list[int]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result, with unused letters for an ellipsis."""
    text = node.attrs["equation"].decode().replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    spare = [c for c in string.ascii_letters if c not in text]
    widths = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True)]
    n_ellipsis = max([w for t, w in zip(terms, widths, strict=True) if "..." in t], default=0)
    letters = "".join(spare[:n_ellipsis])
    if not arrow:
        plain = left.replace(",", "").replace("...", "")
        out = ("..." if n_ellipsis else "") + "".join(
            sorted(c for c in plain if plain.count(c) == 1)
        )
    filled = [
        t.replace("...", letters[n_ellipsis - w :] if "..." in t else "")
        for t, w in zip(terms, widths, strict=True)
    ]
    return filled, out.replace("...", letters)


def _diagonal(b: GradientBuilder, term: str, x: Value) -> Value | None:
    """Return which elements of an operand are read: all (None), or those on a diagonal."""
    mask: Value | None = None
    for axis, letter in enumerate(term):
        first = term.index(letter)
        if first == axis:
            continue
        pair = (b.along(b.arange(b.length(x, a)), a, len(term)) for a in (first, axis))
        is_equal = b.Equal(*pair)
        mask = is_equal if mask is None else b.And(mask, is_equal)
    return mask


@decompose("FusedMatMul", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Value:
    attrs = node.attrs
    operands = []
    for i, side in enumerate("AB"):
        x = input_of(node, i)
        perm = operand_permutation(ranked(x).rank, attrs, side)
        operands.append(x if perm == sorted(perm) else b.Transpose(x, perm=tuple(perm)))
    product: Value = b.MatMul(*operands)
    return product if attrs["alpha"] == 1 else b.Mul(product, attrs["alpha"])

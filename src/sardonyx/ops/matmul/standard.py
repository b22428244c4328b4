"""MatMul, Gemm and Einsum."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import FLOATS, I32, I64, NUMBERS, U32, U64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, required
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.inference import broadcast_shapes

WHOLE: Final = frozenset((I32, I64, U32, U64))
TYPES: Final = FLOATS | WHOLE


def matmul_shape(g: Scope, a: Fact, b: Fact) -> Shape:
    """Return the shape of a matmul; a vector is a row on the left and a column on the right."""
    if not a.rank or not b.rank:
        raise ShapeError(f"a scalar is not a matrix: {a} times {b}")
    rows: Shape = a.dims[-2:-1]
    columns: Shape = b.dims[-1:] if b.rank > 1 else ()
    inner = b.dims[-2] if b.rank > 1 else b.dims[0]
    g.equal(a.dims[-1], inner, "inner dimensions differ")
    return (*broadcast_shapes(g, a.dims[:-2], b.dims[:-2]), *rows, *columns)


def matmul(a: Array, b: Array) -> Any:
    """np.matmul, as one large matrix product where b is a single matrix."""
    a, b = _for_blas(a), _for_blas(b)
    if a.ndim > 2 and b.ndim == 2:
        rows = a.reshape(-1, a.shape[-1]) if a.size else a
        return np.matmul(rows, b).reshape(*a.shape[:-1], b.shape[1])
    return np.matmul(a, b)


def _for_blas(x: Array) -> Array:
    """Return an array with contiguous rows or columns: numpy uses BLAS for those only."""
    if x.ndim < 2 or x.flags.c_contiguous:
        return np.ascontiguousarray(x)
    row, column = x.strides[-2:]
    is_plain = x.flags.aligned and min(row, column) == x.itemsize
    return x if is_plain else np.ascontiguousarray(x)


matmul_op = Op("MatMul", 13, "a:T b:T", "y:T", types={"T": TYPES})
matmul_op.infer(lambda g, a, b: Fact(a.dtype, matmul_shape(g, a, b)))
matmul_op.reference(in_wide(matmul))

_GEMM: Final = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
gemm = Op("Gemm", 13, "a:T b:T c:T?", "y:T", attrs=_GEMM, types={"T": TYPES})


@gemm.infer
def infer_gemm(g: Scope, a: Fact, b: Fact, c: Fact | None, **attrs: Any) -> Fact:
    """The fact of alpha * a b + beta * c."""
    if a.rank != 2 or b.rank != 2:
        raise ShapeError(f"Gemm needs matrices, got {a} and {b}; MatMul allows other ranks")
    shape = gemm_shape(g, a.dims, b.dims, attrs)
    if c is not None:
        check_matrix_bias(g, c, shape)
    return Fact(a.dtype, shape)


def gemm_shape(g: Scope, a: Shape, b: Shape, attrs: Mapping[str, Any]) -> Shape:
    """Return the shape of a product of two matrices, transposed by transA and transB."""
    rows, inner = a[::-1] if attrs["transA"] else a
    other, columns = b[::-1] if attrs["transB"] else b
    g.equal(inner, other, "inner dimensions differ")
    return rows, columns


def check_matrix_bias(g: Scope, c: Fact, product: Shape) -> None:
    """Require c to broadcast to the matrix product."""
    if c.rank > 2:
        raise ShapeError(f"c must broadcast to a matrix, got {c}")
    for have, expected in zip(c.dims, product[2 - c.rank :], strict=True):
        g.equal_or_one(have, expected, "c does not broadcast to the product")


@gemm.reference
@in_wide
def _(a: Array, b: Array, c: Array | None, **attrs: Any) -> Any:
    alpha, beta = attrs["alpha"], attrs["beta"]
    y = matmul(a.T if attrs["transA"] else a, b.T if attrs["transB"] else b)
    if alpha != 1:
        y = _scaled(y, alpha)
    if c is not None and beta:
        y = y + (c if beta == 1 else _scaled(c, beta))
    return y


def _scaled(x: Array, factor: float) -> Any:
    """Multiply by a float; integer results are truncated."""
    return x * x.dtype.type(factor) if x.dtype.kind == "f" else (x * factor).astype(x.dtype)


Label = str  # a letter, or .0, .1, ... for the dims of an ellipsis, counted from the right


class Equation:
    """A parsed einsum equation, with every ellipsis expanded for the ranks of its operands."""

    __slots__ = ("output", "terms")

    def __init__(self, text: bytes, ranks: Sequence[int]) -> None:
        text_shown = text.decode(errors="replace")
        left, arrow, right = text_shown.replace(" ", "").partition("->")
        written = left.split(",")
        for term in (*written, right):
            if not re.fullmatch(_TERM, term):
                raise InvalidGraph(
                    f"the equation {text_shown!r} has the term {term!r}: letters and ... only"
                )
        if len(written) != len(ranks):
            raise InvalidGraph(
                f"the equation {text_shown!r} has {len(written)} terms for {len(ranks)} inputs"
            )
        self.terms: Final = [_labels(t, r, text_shown) for t, r in zip(written, ranks, strict=True)]
        dots = max((t for t in map(_dots, self.terms)), key=len, default=())
        if arrow:
            self.output: tuple[Label, ...] = _expand_ellipsis(right, dots)
            self._check_output(text_shown, bool(dots))
        else:
            used = [label for term in self.terms for label in term if label[0] != "."]
            self.output = (*dots, *sorted(c for c in used if used.count(c) == 1))

    def _check_output(self, text_shown: str, has_dots: bool) -> None:
        inputs = {label for term in self.terms for label in term}
        for label in self.output:
            if label not in inputs:
                raise InvalidGraph(f"the output of {text_shown!r} has {label!r}, and no input has")
        if len(set(self.output)) != len(self.output):
            raise InvalidGraph(f"the output of {text_shown!r} names a letter twice")
        if has_dots and not any(label[0] == "." for label in self.output):
            raise InvalidGraph(
                f"the output of {text_shown!r} leaves out the ellipsis of its inputs"
            )


_TERM: Final = r"[A-Za-z]*(\.\.\.[A-Za-z]*)?"  # few models need it compiled


def _labels(term: str, rank: int, text_shown: str) -> tuple[Label, ...]:
    letters = len(term.replace("...", ""))
    if letters > rank or (letters < rank and "..." not in term):
        raise ShapeError(
            f"the term {term!r} of {text_shown!r} stands for {letters} dims, its input has {rank}"
        )
    return _expand_ellipsis(term, [f".{i}" for i in range(rank - letters - 1, -1, -1)])


def _expand_ellipsis(term: str, dots: Sequence[Label]) -> tuple[Label, ...]:
    before, ellipsis, after = term.partition("...")
    return (*before, *(dots if ellipsis else ()), *after)


def _dots(term: Sequence[Label]) -> Sequence[Label]:
    return [label for label in term if label[0] == "."]


einsum = Op(
    "Einsum", 28, "xs:T*", "y:T", attrs={"equation": required("bytes")}, types={"T": NUMBERS}
)


@einsum.infer
def _(g: Scope, *xs: Fact | None, equation: bytes) -> Fact:
    present = [x for x in xs if x is not None]
    if not present or len(present) != len(xs):
        raise InvalidGraph(f"Einsum needs all of its {len(xs)} inputs, got {len(present)}")
    parsed = Equation(equation, [x.rank for x in present])
    sizes: dict[Label, Size] = {}
    for x, term in zip(present, parsed.terms, strict=True):
        if x.dtype is not present[0].dtype:
            raise ShapeError(
                f"inputs must have the same type, got {present[0].dtype} and {x.dtype}"
            )
        dims: dict[Label, Size] = {}
        for label, size in zip(term, x.dims, strict=True):
            dims[label] = g.equal(dims.get(label, size), size, f"{label} is two sizes of one input")
        for label, size in dims.items():
            text_shown = "..." if label[0] == "." else label
            sizes[label] = g.broadcast(sizes.get(label, 1), size, f"sizes of {text_shown} differ")
    return Fact(present[0].dtype, tuple(sizes[label] for label in parsed.output))


@einsum.reference
@in_wide
def _(*xs: Array, equation: bytes) -> Any:
    parsed = Equation(equation, [x.ndim for x in xs])
    operands = [_diagonal(x, term) for x, term in zip(xs, parsed.terms, strict=True)]
    # From left to right; a label stays as long as the output or a later operand has it.
    left, labels = operands[0]
    for i, (right, term) in enumerate(operands[1:], 1):
        later = {label for _, t in operands[i + 1 :] for label in t}
        left, labels = _contract(left, labels, right, term, {*parsed.output, *later})
    left, labels = _reduce_unneeded(left, labels, set(parsed.output))
    y = np.transpose(left, [labels.index(c) for c in parsed.output])
    return np.array(y, order="C") if len(xs) == 1 else np.asarray(y, order="C")


Labels = tuple[Label, ...]


def _diagonal(x: Array, term: Labels) -> tuple[Array, Labels]:
    """Take the diagonal over letters that occur twice in a term."""
    for label in dict.fromkeys(term):
        while term.count(label) > 1:
            i = term.index(label)
            j = term.index(label, i + 1)
            x = np.diagonal(x, axis1=i, axis2=j)
            term = (*term[:i], *term[i + 1 : j], *term[j + 1 :], label)
    return x, term


def _reduce_unneeded(x: Array, labels: Labels, needed: set[Label]) -> tuple[Array, Labels]:
    """Sum over the dims whose labels are not needed any more."""
    axes = tuple(i for i, label in enumerate(labels) if label not in needed)
    if not axes:
        return x, labels
    return np.sum(x, axes, x.dtype), tuple(label for label in labels if label in needed)


def _contract(
    a: Array, a_labels: Labels, b: Array, b_labels: Labels, needed: set[Label]
) -> tuple[Array, Labels]:
    """Contract two operands as one batched matmul: [batch, rows, k] times [batch, k, columns]."""
    # Dims that neither the result nor the other operand has are summed first: the matmul shrinks.
    a, a_labels = _reduce_unneeded(a, a_labels, needed | set(b_labels))
    b, b_labels = _reduce_unneeded(b, b_labels, needed | set(a_labels))
    shared = [c for c in a_labels if c in b_labels]
    batch = [c for c in shared if c in needed]
    contracted = [c for c in shared if c not in needed]
    rows = [c for c in a_labels if c not in b_labels]
    columns = [c for c in b_labels if c not in a_labels]
    lengths = dict(zip(b_labels, b.shape, strict=True))
    sizes = {
        c: n if n != 1 else lengths[c]
        for c, n in zip(a_labels, a.shape, strict=True)
        if c in contracted
    }
    left = _grouped(a, a_labels, (batch, rows, contracted), sizes)
    right = _grouped(b, b_labels, (batch, contracted, columns), sizes)
    y = matmul(left, right)
    shape = [
        *y.shape[: len(batch)],
        *(a.shape[a_labels.index(c)] for c in rows),
        *(b.shape[b_labels.index(c)] for c in columns),
    ]
    return y.reshape(shape), (*batch, *rows, *columns)


def _grouped(
    x: Array, labels: Labels, groups: Sequence[Sequence[Label]], sizes: dict[Label, int]
) -> Array:
    """Permute and reshape to the dims of the first group, then one dim per other group."""
    order = [c for group in groups for c in group]
    permuted = np.transpose(x, [labels.index(c) for c in order])
    # A size of 1 broadcasts: where it is contracted, it is expanded first.
    full = tuple(sizes.get(c, n) for c, n in zip(order, permuted.shape, strict=True))
    n_batch, n_second = len(groups[0]), len(groups[1])
    second, third = full[n_batch:][:n_second], full[n_batch:][n_second:]
    shape = (*full[:n_batch], int(np.prod(second)), int(np.prod(third)))
    return np.broadcast_to(permuted, full).reshape(shape)


OPS: Final = (matmul_op, gemm, einsum)

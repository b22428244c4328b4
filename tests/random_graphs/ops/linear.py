"""Matrix products, and products by equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.random_graphs.builder import Builder
from tests.random_graphs.ops.draw import Generator, types
from tests.random_graphs.value import Value

WIDTHS = (1, 2, 3, 4, 7, 8, 16, 17, 31, 32, 33, 40, 64, 65)


def weight(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    """A constant mostly, of numbers that keep sums of products small."""
    style = b.rng.choice(("initializer", "initializer", "node", "input"))
    if x.dtype in ("float", "double", "float16", "bfloat16"):
        depth = max(1, shape[0] if shape else 1)
        bound = min(1.0, 2.0 / depth**0.5)
        return b.new(x.dtype, shape, -bound, bound, style)
    return b.new(x.dtype, shape, style=style)


def matmul(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), lambda v: v.rank > 0 and v.shape[-1] > 0)
    k = x.shape[-1]
    if b.rng.random() < 0.3:
        y = b.among([x.dtype], lambda v: v.rank >= 2 and v.shape[-2] == k and _batch(v, x))
        if y is not None:
            b.emit(op, [x, y])
            return
    lead: tuple[int, ...] = ()
    if x.rank > 2 and b.rng.random() < 0.4:
        lead = tuple(b.rng.choice((d, 1)) for d in x.shape[:-2])
    shape = (k,) if b.rng.random() < 0.05 else (*lead, k, b.rng.choice(WIDTHS))
    b.emit(op, [x, weight(b, x, shape)])


def _batch(v: Value, x: Value) -> bool:
    try:
        np.broadcast_shapes(v.shape[:-2], x.shape[:-2])
    except ValueError:
        return False
    return True


def gemm(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), lambda v: v.rank == 2 and 0 not in v.shape, lambda: b.new_shape(2))
    trans_a, trans_b = b.rng.randrange(2), b.rng.randrange(2)
    m, k = x.shape[::-1] if trans_a else x.shape
    n = b.rng.choice(WIDTHS)
    w = weight(b, x, (n, k) if trans_b else (k, n))
    inputs = [x, w]
    if b.rng.random() < 0.7 or b.traits.opset < 11:
        shape = b.rng.choice(((n,), (1, n), (m, n), (m, 1), (1, 1), (1,), ()))
        inputs.append(b.like(x, shape))
    attrs: dict[str, Any] = {"transA": trans_a, "transB": trans_b}
    if b.rng.random() < 0.3:
        attrs |= {"alpha": b.rng.choice((0.5, 1.0, 2.0)), "beta": b.rng.choice((0.0, 0.5, 2.0))}
        if x.dtype not in ("float", "double", "float16", "bfloat16"):
            attrs = {**attrs, "alpha": 2.0, "beta": 3.0}
    b.emit(op, inputs, **attrs)


EQUATIONS = (
    "ij,jk->ik", "ij->ji", "ij->", "ij->i", "ij,ij->ij", "ij,kj->ik", "bij,bjk->bik",
    "...ij->...ji", "bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "i,j->ij", "ii->i",
    "...ij,jk->...ik",
    "abc,cd->abd", "ij,jk,kl->il", "bid,bjd->bij", "ab,ab->a", "aib,b->ai", "i,i->",
)  # fmt: skip


def einsum(b: Builder, op: str) -> None:
    equation = b.rng.choice(EQUATIONS)
    terms = equation.split("->")[0].split(",")
    sizes = {c: b.rng.choice((1, 2, 3, 5, 8)) for c in sorted({*equation}) if c.isalpha()}
    dots = b.rng.choice(((), (2,), (1, 3)))
    dtype = b.rng.choice([t for t in b.traits.dtypes if t in types(b, op)] or ["float"])
    inputs = []
    for term in terms:
        lead = dots if "..." in term else ()
        shape = (*lead, *(sizes[c] for c in term if c.isalpha()))
        found = b.among([dtype], lambda v, s=shape: v.shape == s)  # type: ignore[misc]
        inputs.append(found or b.new(dtype, shape))
    b.emit(op, inputs, equation=equation)


def det(b: Builder, op: str) -> None:
    n = b.rng.choice((1, 2, 3, 4))
    x = b.pick(
        types(b, op),
        lambda v: v.rank >= 2 and v.shape[-1] == v.shape[-2] and 0 < v.shape[-1] < 6,
        lambda: b.rng.choice(((n, n), (2, n, n))),
    )
    b.emit(op, [x])


def fused_matmul(b: Builder, op: str) -> None:
    x = b.pick(["float"], lambda v: v.rank >= 2 and 0 not in v.shape, lambda: b.new_shape(3))
    trans_a, trans_b = b.rng.randrange(2), b.rng.randrange(2)
    k, n = x.shape[-2] if trans_a else x.shape[-1], b.rng.choice(WIDTHS)
    w = weight(b, x, (n, k) if trans_b else (k, n))
    b.emit(
        op, [x, w], domain="com.microsoft", transA=trans_a, transB=trans_b,
        alpha=b.rng.choice((1.0, 0.5, 0.125)),
    )  # fmt: skip


def integer_product(b: Builder, op: str) -> None:
    """MatMulInteger, with zero points for all or for each row and column."""
    x = b.pick(
        types(b, op, "T1"), lambda v: v.rank >= 2 and 0 not in v.shape, lambda: b.new_shape(2)
    )
    n, k = b.rng.choice(WIDTHS), x.shape[-1]
    kind = b.rng.choice(types(b, op, "T2"))
    if kind == "int8" and x.dtype == "int8":
        kind = "uint8"
    style = b.rng.choice(("initializer", "input"))
    w = b.new(kind, (k, n), style=style)
    inputs: list[Value | None] = [x, w]
    if b.rng.random() < 0.7:
        inputs.append(b.new(x.dtype, (), 0, 9))
        if b.rng.random() < 0.7:
            inputs.append(b.new(kind, b.rng.choice(((), (n,))), 0, 9))
    b.emit(op, inputs)


OPS: dict[str, Generator] = {
    "MatMul": matmul, "Gemm": gemm, "Einsum": einsum, "Det": det, "FusedMatMul": fused_matmul,
    "MatMulInteger": integer_product,
}  # fmt: skip

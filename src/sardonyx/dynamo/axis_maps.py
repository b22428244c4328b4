"""Linear maps along one axis with constant, mostly sparse matrices: resizing, adaptive pooling."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.dynamo.aten_builder import AtenBuilder
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Value

Matrix = np.ndarray[Any, np.dtype[np.float32]]
_MAX_GATHERED: Final = 8  # nonzero elements per row up to which gathering is cheaper than a matmul


def apply_along(b: AtenBuilder, x: Value, matrix: Matrix, axis: int) -> Value:
    """Return `matrix` [out, in] applied along one axis of a float32 tensor."""
    out, size = matrix.shape
    if out == size and np.array_equal(matrix, np.eye(size, dtype=matrix.dtype)):
        return x
    n_nonzero = int((matrix != 0).sum(axis=1).max(initial=0))
    if n_nonzero == 1 and (matrix.max(axis=1) == 1).all():
        return b.Gather(x, b.const(matrix.argmax(axis=1), I64), axis=axis)
    if 0 < n_nonzero <= _MAX_GATHERED < size:
        return _gathered(b, x, matrix, axis, n_nonzero)
    return _multiplied(b, x, matrix, axis)


def _gathered(b: AtenBuilder, x: Value, matrix: Matrix, axis: int, n_nonzero: int) -> Value:
    """Sum up gathered slices, each times its weights: one Gather per nonzero element of a row.

    Rows with fewer elements read their first one again, with the weight 0.
    """
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :n_nonzero]  # nonzero columns first
    weights = np.take_along_axis(matrix, order, axis=1)
    order = np.where(weights != 0, order, order[:, :1])
    shape = (-1, *(1,) * (x.tensor.rank - 1 - axis))
    total: Value | None = None
    for k in range(n_nonzero):
        slices = b.Gather(x, b.const(order[:, k], I64), axis=axis)
        term = b.Mul(slices, b.const(weights[:, k].reshape(shape)))
        total = term if total is None else b.Add(total, term)
    assert total is not None
    return total


def _multiplied(b: AtenBuilder, x: Value, matrix: Matrix, axis: int) -> Value:
    rank = x.tensor.rank
    if axis == rank - 1:
        return b.MatMul(x, b.const(np.ascontiguousarray(matrix.T)))
    if axis == rank - 2:
        return b.MatMul(b.const(matrix), x)
    swap = list(range(rank))
    swap[axis], swap[rank - 2] = rank - 2, axis
    product = b.MatMul(b.const(matrix), b.Transpose(x, perm=tuple(swap)))
    return b.Transpose(product, perm=tuple(swap))

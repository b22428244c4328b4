"""Ops on whole matrices: Det, and Inverse, CDist and DynamicTimeWarping of com.microsoft."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.dtype import F32, F64, FLOATS, I32, IEEE
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.attention.heads import same_rank
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.inference import check_choice

det = Op("Det", 22, "x:T", "y:T", types={"T": FLOATS})


@det.infer
def _(g: Scope, x: Fact) -> Fact:
    if x.rank < 2:
        raise ShapeError(f"a determinant needs square matrices, got {x}")
    g.equal(x.dims[-2], x.dims[-1], "the matrix is not square")
    return x.shaped(x.dims[:-2])


det.reference(in_wide(lambda x: np.linalg.det(x.astype(np.float64)).astype(x.dtype)))


inverse: Final = Op("Inverse", 1, "X:T", "Y:T", domain=MICROSOFT, types={"T": IEEE})


@inverse.infer
def _(g: Scope, x: Fact) -> Fact:
    if x.rank < 2:
        raise InvalidGraph(f"X must be a stack of square matrices, got {x}")
    g.equal(x.dims[-1], x.dims[-2], "only square matrices have an inverse")
    return x.without_contents()


@inverse.reference
@in_wide
def _(x: Array) -> Array:
    try:
        return np.asarray(np.linalg.inv(x))
    except np.linalg.LinAlgError:
        raise InvalidArgument("one of the matrices is singular: it has no inverse") from None


METRICS: Final = (b"sqeuclidean", b"euclidean")

cdist: Final = Op(
    "CDist",
    1,
    "A:T B:T",
    "C:T",
    domain=MICROSOFT,
    attrs={"metric": b"sqeuclidean"},
    types={"T": frozenset((F32, F64))},
)


@cdist.infer
def _(g: Scope, a: Fact, b: Fact, *, metric: bytes) -> Fact:
    check_choice("metric", metric, METRICS, InvalidGraph)
    same_rank(2, A=a, B=b)
    g.equal(a.dims[1], b.dims[1], "rows of A and B have different lengths")
    return a.shaped((a.dims[0], b.dims[0]))


@cdist.reference
@np.errstate(all="ignore")
def _(a: Array, b: Array, *, metric: bytes) -> Array:
    # Not |a|^2 + |b|^2 - 2ab, which cancels for close rows.
    squares = np.empty((len(a), len(b)), a.dtype)
    for i, row in enumerate(a):
        squares[i] = np.square(row - b).sum(axis=1)
    return np.sqrt(squares) if metric == b"euclidean" else squares


# The cheapest monotone path (steps down, right or diagonal) from the first to the last corner.
_WARPING: Final = {"F": frozenset((F32,)), "I": frozenset((I32,))}
warping: Final = Op(
    "DynamicTimeWarping", 1, "input:F", "output:I", domain=MICROSOFT, types=_WARPING
)


@warping.infer
def _(g: Scope, x: Fact) -> Fact:
    if x.rank not in (2, 3):
        raise InvalidGraph(f"the costs must be a matrix, got {x}")
    if x.rank == 3:
        g.equal(x.dims[0], 1, "there is one matrix of costs")
    for size in x.dims[-2:]:
        g.at_least(size, 1, "the matrix of costs is empty")
    return Fact(I32, (2, g.new_dim("path")))


@warping.reference
def _(x: Array) -> Array:
    costs = x.reshape(x.shape[-2:])
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    backpointers = np.zeros((rows + 1, columns + 1), np.int8)
    total[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):  # anti-diagonals are independent
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        diagonal_cost, down, right = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        # Ties go to the right, as in onnxruntime: a step must be strictly cheaper than both others.
        is_down = (down < diagonal_cost) & (down < right)
        is_across = (diagonal_cost < down) & (diagonal_cost < right)
        backpointers[i, j] = np.where(is_across, 0, np.where(is_down, 1, 2))
        best = np.choose(backpointers[i, j], (diagonal_cost, down, right))
        total[i, j] = costs[i - 1, j - 1] + best
    backpointers[0, :], backpointers[:, 0] = 2, 1
    return _backtrack(backpointers)


def _backtrack(backpointers: Array) -> Array:
    """Return the path from the first to the last corner by backtracking."""
    path: list[tuple[int, int]] = []
    i, j = backpointers.shape[0] - 1, backpointers.shape[1] - 1
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = backpointers[i, j]
        i, j = i - int(step != 2), j - int(step != 1)
    return np.array(path[::-1], np.int32).T.copy()


@cdist.decompose
def _(b: Builder, node: Node) -> Outputs:
    """CDist: |a|^2 - 2 a b + |b|^2, since all differences would need too much memory."""
    left, right = input_of(node, 0), input_of(node, 1)
    squares = [b.ReduceSumSquare(x, b.ints(1), keepdims=1) for x in (left, right)]
    twice = b.FusedMatMul(left, right, domain=MICROSOFT, transB=1, alpha=-2.0)
    # Rounding can make the distance of equal points negative.
    y = b.Relu(b.Add(b.Add(twice, squares[0]), b.Transpose(squares[1], perm=(1, 0))))
    return (b.Sqrt(y) if node.attrs["metric"] == b"euclidean" else y,)


OPS: Final = (det, inverse, cdist, warping)

"""GridSample and AffineGrid."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import FLOATS, I64, STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.resize.standard import RESIZABLE
from sardonyx.ops.sample.grid_sample import affine_grid, grid_sample

grid = Op(
    "GridSample",
    22,
    "x:T grid:G",
    "y:T",
    attrs={"align_corners": 0, "mode": b"linear", "padding_mode": b"zeros"},
    types={"T": RESIZABLE, "G": FLOATS},
)


@grid.infer
def _(g: Scope, x: Fact, grid: Fact, *, mode: bytes, padding_mode: bytes, **_: Any) -> Fact:
    if mode not in (b"linear", b"nearest", b"cubic"):
        raise ShapeError(f"mode is {mode!r}, and may be linear, nearest or cubic")
    if padding_mode not in (b"zeros", b"border", b"reflection"):
        raise ShapeError(f"padding_mode {padding_mode!r} is not zeros, border or reflection")
    if x.rank < 3 or grid.rank != x.rank:
        raise ShapeError(f"x and grid have one rank of 3 or more, not {x.rank} and {grid.rank}")
    if x.dtype is STRING and mode != b"nearest":
        raise ShapeError("strings cannot be interpolated: only mode nearest samples them")
    g.equal(x.dims[0], grid.dims[0], "x and grid differ in batch")
    g.equal(grid.dims[-1], x.rank - 2, "the grid holds one position per spatial axis")
    return Fact(x.dtype, (*x.dims[:2], *grid.dims[1:-1]))


grid.reference(np.errstate(all="ignore")(grid_sample))


affine = Op(
    "AffineGrid",
    20,
    "theta:T size:I",
    "grid:T",
    attrs={"align_corners": 0},
    types={"T": FLOATS, "I": frozenset((I64,))},
)


@affine.infer
def _(g: Scope, theta: Fact, size: Fact, *, align_corners: int) -> Fact:
    if theta.rank != 3 or size.rank != 1:
        raise ShapeError(f"theta has rank 3 and size is a vector, not {theta} and {size}")
    rank = theta.dims[1]
    count = size.dims[0]
    n = rank if isinstance(rank, int) else count - 2 if isinstance(count, int) else None
    if n is None:
        return Fact(theta.dtype, None)
    if n not in (2, 3):
        raise ShapeError(f"theta maps {n} axes, and AffineGrid supports 2 and 3")
    g.equal(rank, n, "theta and size differ in the number of axes")
    g.equal(count, n + 2, "size holds batch, channels and the spatial sizes")
    g.equal(theta.dims[2], n + 1, "theta's last axis")
    if size.sym is None:
        return Fact(theta.dtype, (theta.dims[0], *(g.fresh("grid") for _ in range(n)), n))
    for s in size.sym:
        g.at_least(s, 0, "size holds a negative number")
    g.equal(size.sym[0], theta.dims[0], "size and theta differ in batch")
    return Fact(theta.dtype, (theta.dims[0], *size.sym[2:], n))


affine.reference(np.errstate(all="ignore")(affine_grid))


OPS: Final = (grid, affine)

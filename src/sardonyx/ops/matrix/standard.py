"""Det."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.arrays import in_wide

det = Op("Det", 22, "x:T", "y:T", types={"T": FLOATS})


@det.infer
def _(g: Scope, x: Fact) -> Fact:
    if x.rank < 2:
        raise ShapeError(f"a determinant needs square matrices, not {x}")
    g.equal(x.dims[-2], x.dims[-1], "the matrix is not square")
    return x.shaped(x.dims[:-2])


det.reference(in_wide(lambda x: np.linalg.det(x.astype(np.float64)).astype(x.dtype)))


OPS: Final = (det,)

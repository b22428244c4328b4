"""UnfoldTensor of com.microsoft: sliding windows along one axis, like torch.Tensor.unfold."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.inference import axis_of

unfold: Final = Op(
    "UnfoldTensor",
    1,
    "input:T",
    "output:T",
    domain=MICROSOFT,
    attrs={"dim": -1, "size": required("int"), "step": 1},
)


@unfold.infer
def _(g: Scope, x: Fact, *, dim: int, size: int, step: int) -> Fact:
    axis = axis_of(dim, x.rank, "dim")
    if size < 1 or step < 1:
        raise InvalidGraph(f"size {size} and step {step} must be 1 or more")
    g.at_least(x.dims[axis], size, "a slice is longer than the dim")
    count = (x.dims[axis] - size) // step + 1
    return x.shaped((*x.dims[:axis], count, *x.dims[axis + 1 :], size))


@unfold.reference
def _(x: Array, *, dim: int, size: int, step: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, size, dim)
    steps = [slice(None)] * x.ndim
    steps[dim % x.ndim] = slice(None, None, step)
    return np.ascontiguousarray(windows[(*steps, slice(None))])


OPS: Final = (unfold,)

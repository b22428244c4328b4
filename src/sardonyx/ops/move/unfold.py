"""UnfoldTensor of com.microsoft: sliding windows along one axis, like torch.Tensor.unfold."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, known_size
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
        raise InvalidGraph(f"size {size} and step {step} must be at least 1")
    g.at_least(x.dims[axis], size, "a slice is longer than the dim")
    count = (x.dims[axis] - size) // step + 1
    return x.shaped((*x.dims[:axis], count, *x.dims[axis + 1 :], size))


@unfold.reference
def _(x: Array, *, dim: int, size: int, step: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, size, dim)
    steps = [slice(None)] * x.ndim
    steps[dim % x.ndim] = slice(None, None, step)
    return np.ascontiguousarray(windows[(*steps, slice(None))])


@unfold.decompose
def _(b: Builder, node: Node) -> Outputs:
    """UnfoldTensor: overlapping slices, gathered by their start positions."""
    x, size = input_of(node, 0), node.attrs["size"]
    rank = x.tensor.rank
    axis = node.attrs["dim"] % rank
    length = known_size(x.tensor.dims[axis], "the number of slices is unknown")
    starts = np.arange(0, length - size + 1, node.attrs["step"])
    # Row i has the positions of the i-th slice.
    slices = b.Gather(x, b.const(starts[:, None] + np.arange(size), I64), axis=axis)
    order = [i for i in range(rank + 1) if i != axis + 1]
    return (b.Transpose(slices, perm=(*order, axis + 1)),)


OPS: Final = (unfold,)

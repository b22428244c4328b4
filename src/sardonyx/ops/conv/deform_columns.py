"""DeformColumns: the sampled im2col matrix of a DeformConv, which a MatMul follows."""

from __future__ import annotations

import math
from typing import Any, Final

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op
from sardonyx.ops.conv.deform import check_offsets, deform_columns
from sardonyx.ops.conv.standard import deform
from sardonyx.ops.sliding_window import window_of

columns = Op(
    "DeformColumns",
    1,
    "x:T offset:T mask:T?",
    "y:T",
    attrs={k: v for k, v in deform.attrs.items() if k != "group"},
    types={"T": frozenset((F32,))},
    domain=INTERNAL,
)


@columns.infer
def _(g: Scope, x: Fact, offset: Fact, mask: Fact | None, **attrs: Any) -> Fact:
    kernel, groups = attrs["kernel_shape"], attrs["offset_group"]
    if kernel is None or len(kernel) != x.rank - 2 or min(kernel, default=0) < 1:
        raise ShapeError(f"a kernel of {kernel} does not fit {x}")
    window = window_of(kernel, attrs)
    window.check(g, x.dims[2:])
    y = x.shaped((x.dims[0], x.dims[1] * math.prod(kernel), *window.outs(x.dims[2:])))
    check_offsets(g, y, (offset, mask), kernel, groups)
    g.divides(groups, x.dims[1], "offset_group must divide the channels of x")
    return y


columns.reference(deform_columns)

OPS: Final = (columns,)

"""Deformable convolution: what its taps read, as columns for a product of matrices."""

from __future__ import annotations

import math
from typing import Any, Final

from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops.conv import deform
from sardonyx.ops.conv.deform import deform_columns
from sardonyx.ops.declare import INTERNAL, Op

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
    taps = math.prod(attrs["kernel_shape"])
    return x.shaped((x.dims[0], x.dims[1] * taps, *offset.dims[2:]))


columns.reference(deform_columns)

OPS: Final = (columns,)

"""Copy, an internal op: copies a value to another device."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.op import INTERNAL, Op, required
from sardonyx.ops.arrays import Array

copy = Op("Copy", 1, "x:T", "y:T", attrs={"to": required("bytes")}, domain=INTERNAL)


copy.infer(lambda g, x, *, to: x)


@copy.reference
def _(x: Array, *, to: bytes) -> Array:
    """The identity: references run on the host only."""
    return x


OPS: Final = (copy,)

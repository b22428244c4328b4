"""Softmax, LogSoftmax and Hardmax over one axis."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, Reference
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.inference import axis_of


def _over_axis(name: str, reference: Reference) -> Op:
    op = Op(name, 13, "x:T", "y:T", attrs={"axis": -1}, types={"T": FLOATS}, unranked=True)
    op.infer(_same_shape)
    op.reference(in_wide(reference))
    return op


def _same_shape(g: Scope, x: Fact, *, axis: int) -> Fact:
    if x.shape is not None:
        axis_of(axis, x.rank)
    return x.without_contents()


def _shifted(x: Array, axis: int) -> Any:
    """Return x - max(x), so that exp cannot overflow."""
    # The initial value is for an axis of length 0.
    return x - np.max(x, axis, keepdims=True, initial=-np.inf)


def softmax(x: Array, *, axis: int) -> Any:
    """exp(x) / sum(exp(x)) along an axis."""
    e = np.exp(_shifted(x, axis))
    return e / np.sum(e, axis, keepdims=True)


def log_softmax(x: Array, *, axis: int) -> Any:
    """x - max - log(sum(exp(x - max))): accurate where softmax underflows."""
    shifted = _shifted(x, axis)
    return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))


def _hardmax(x: Array, *, axis: int) -> Array:
    y = np.zeros_like(x)
    if x.size:
        first = np.expand_dims(np.argmax(x, axis), axis)
        np.put_along_axis(y, first, x.dtype.type(1), axis)
    return y


OPS: Final = (
    _over_axis("Softmax", softmax),
    _over_axis("LogSoftmax", log_softmax),
    _over_axis("Hardmax", _hardmax),
)

"""Nodes that fold axes, or run along them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.ops.draw import Generator, axes, axis, ranked, types


def fold(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), lambda v: v.data.size > 0)
    params: dict[str, Any] = {}
    attrs: dict[str, Any] = {"keepdims": b.rng.choice((0, 1, None))}
    if b.rng.random() < 0.8:
        chosen = axes(b, x, 1)
        if b.traits.opset < 11:
            chosen = [a % x.rank for a in chosen]
        params["axes"] = np.array(chosen, np.int64) if chosen else None
    if b.rng.random() < 0.1 and not params:
        attrs["noop_with_empty_axes"] = 1
    b.emit(op, [x], params=params, **attrs)


def arg(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), lambda v: v.rank > 0 and v.data.size > 0)
    if not x.rank:
        raise Unfit("no axis")
    at = axis(b, x) if b.traits.opset >= 11 else b.rng.randrange(x.rank)
    last = b.rng.choice((0, 1, None)) if b.traits.opset >= 12 else None
    b.emit(op, [x], axis=at, keepdims=b.rng.choice((0, 1, None)), select_last_index=last)


def cumulate(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1))
    at = b.param(np.array(axis(b, x), b.rng.choice((np.int64, np.int32))))
    flags = {k: b.rng.randrange(2) for k in ("exclusive", "reverse") if b.rng.random() < 0.5}
    b.emit(op, [x, at], **flags)


def along(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1, 4))
    at = axis(b, x) if b.traits.opset >= 11 else b.rng.randrange(x.rank)
    b.emit(op, [x], axis=at if b.rng.random() < 0.8 else None)


_FOLDS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceSumSquare"
)
OPS: dict[str, Generator] = {
    **dict.fromkeys(_FOLDS.split(), fold),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg),
    **dict.fromkeys(("CumSum", "CumProd"), cumulate),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), along),
}

"""Ops that search and sort."""

from __future__ import annotations

from typing import Final

import numpy as np

from bench.sweep.case import Array, Case
from bench.sweep.draw import Draw, Family, rows


def _top_k(d: Draw, op: str) -> Case:
    shape, axis = (d.table(), -1) if d.chance(0.8) else (d.image(), 1)
    k = min(shape[axis], d.pick((1, 5, 100)))
    attrs = {"axis": axis, "largest": d.pick((1, 1, 0)), "sorted": d.pick((1, 1, 0))}
    dtype = d.pick(("float32", "float32", "float64", "int64"))
    return Case(
        op, [d.array(shape, dtype), np.array([k], np.int64)], attrs, frozenset({1}), n_outputs=2
    )


def _one_hot(d: Draw, op: str) -> Case:
    count, depth = {"tiny": (4, 5), "typical": (512, 100), "large": (4096, 1000)}[d.size]
    values = np.array([0, 1], d.pick(("float32", "int64")))
    operands = [d.array((count,), "int64", 0, depth), np.array(depth, np.int64), values]
    return Case(op, operands, {}, frozenset({1, 2}))


def _flat(d: Draw, op: str) -> Case:
    """NonZero, Unique: ops with data-dependent output sizes."""
    count = {"tiny": 16, "typical": 8400, "large": 300_000}[d.size]
    shape = d.pick([(count,), (max(1, count // 20), 20)])
    n_outputs = d.pick((1, 4)) if op == "Unique" else 1
    return Case(op, [d.array(shape, d.pick(("int64", "float32")), 0, 50)], n_outputs=n_outputs)


def _nms(d: Draw, op: str) -> Case:
    boxes, classes = {"tiny": (16, 1), "typical": (1000, 4), "large": (8400, 20)}[d.size]
    corners = d.array((1, boxes, 2), "float32", 0, 500)
    boxes_array = np.concatenate([corners, corners + d.array((1, boxes, 2), "float32", 5, 80)], -1)
    scores = d.array((1, classes, boxes), "float32", 0, 1)
    limits: list[Array] = [
        np.array([100], np.int64),
        np.array([0.5], np.float32),
        np.array([d.pick((0.05, 0.5))], np.float32),
    ]
    return Case(op, [boxes_array, scores, *limits], {}, frozenset({2, 3, 4}))


FAMILIES: Final[dict[str, Family]] = {
    "TopK": _top_k,
    "OneHot": _one_hot,
    "NonMaxSuppression": _nms,
    **rows("NonZero Unique", _flat),
}

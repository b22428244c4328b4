"""Ops that move elements: gather, scatter, concatenate, permute."""

from __future__ import annotations

from typing import Final

import numpy as np

from bench.sweep.case import Case
from bench.sweep.draw import Draw, Family, rows


def _gather(d: Draw, op: str) -> Case:
    shape = d.shape()
    dtype = d.pick(("float32", "float32", "float16", "int64"))
    axis = d.pick((0, 0, 1, len(shape) - 1))
    count = {"tiny": 3, "typical": 128, "large": 2048}[d.size]
    if op == "Gather":
        dims: tuple[int, ...] = d.pick([(), (count,), (1, count)])
    else:
        dims = tuple(min(n, count) if i == axis else n for i, n in enumerate(shape))
    index = d.array(dims, d.pick(("int64", "int32")), 0, shape[axis])
    return Case(
        op,
        [d.array(shape, dtype), index],
        {"axis": axis},
        frozenset({1}) if d.chance(0.3) else frozenset(),
    )


def _gather_nd(d: Draw, op: str) -> Case:
    shape = d.shape()
    depth = d.pick(range(1, len(shape) + 1))
    count = {"tiny": 3, "typical": 256, "large": 4096}[d.size]
    index = np.stack([d.array((count,), "int64", 0, n) for n in shape[:depth]], -1)
    operands = [d.array(shape), index]
    if op == "ScatterND":
        operands.append(d.array((count, *shape[depth:])))
    return Case(op, operands)


def _scatter_elements(d: Draw, op: str) -> Case:
    shape, axis = d.shape(), d.pick((0, 1))
    rows = tuple(max(1, n // 2) if i == axis else n for i, n in enumerate(shape))
    reduction = d.pick(("none", "none", "add", "max"))
    return Case(
        op,
        [d.array(shape), d.array(rows, "int64", 0, shape[axis]), d.array(rows)],
        {"axis": axis, "reduction": reduction},
    )


def _concat(d: Draw, op: str) -> Case:
    shape, dtype = d.shape(), d.pick(("float32", "float32", "float16", "int64", "uint8"))
    axis = d.pick((1, 1, 0, len(shape) - 1))
    parts = [
        tuple(n if i != axis else max(1, n // d.pick((1, 2, 3))) for i, n in enumerate(shape))
        for _ in range(d.pick((2, 2, 3, 6)))
    ]
    return Case(op, [d.array(p, dtype) for p in parts], {"axis": axis})


def _split(d: Draw, op: str) -> Case:
    shape = d.shape()
    axis = d.pick((1, 1, 0, len(shape) - 1))
    n = d.pick([k for k in (1, 2, 3, 4) if k <= shape[axis]])
    return Case(
        op,
        [d.array(shape, d.pick(("float32", "float16", "int64")))],
        {"axis": axis, "num_outputs": n},
        n_outputs=n,
    )


def _slice(d: Draw, op: str) -> Case:
    shape = d.shape()
    axis = d.pick(range(len(shape)))
    step = d.pick((1, 1, 2, -1))
    n = shape[axis]
    begin, end = (n - 1, -n - 1) if step < 0 else (n // 4, n)
    vectors = [np.array([v], np.int64) for v in (begin, end, axis, step)]
    dtype = d.pick(("float32", "float32", "float16", "int64", "uint8"))
    return Case(op, [d.array(shape, dtype), *vectors], {}, frozenset({1, 2, 3, 4}))


def _transpose(d: Draw, op: str) -> Case:
    shape = d.shape()
    rank = len(shape)
    common: dict[int, list[tuple[int, ...]]] = {
        3: [(0, 2, 1), (1, 0, 2)],
        4: [(0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3), (0, 1, 3, 2)],
    }
    perm = d.pick(common[rank]) if rank in common and d.chance(0.7) else d.permutation(rank)
    dtype = d.pick(("float32", "float32", "float16", "int64", "uint8", "float64"))
    return Case(op, [d.array(shape, dtype)], {"perm": list(perm)})


def _pad(d: Draw, op: str) -> Case:
    shape = d.image()
    mode = d.pick(("constant", "constant", "reflect", "edge"))
    pads = np.array([0, 0, 1, 2, 0, 0, 1, 1], np.int64)
    return Case(
        op,
        [d.array(shape, d.pick(("float32", "float16", "uint8"))), pads],
        {"mode": mode},
        frozenset({1}),
    )


def _expand(d: Draw, op: str) -> Case:
    shape = d.shape()
    start = tuple(n if d.chance(0.6) else 1 for n in shape)
    repeats = [n // m for n, m in zip(shape, start, strict=True)]
    wanted = np.array(shape if op == "Expand" else repeats, np.int64)
    return Case(
        op, [d.array(start, d.pick(("float32", "float16", "int64"))), wanted], {}, frozenset({1})
    )


def _trilu(d: Draw, op: str) -> Case:
    n = {"tiny": 5, "typical": 128, "large": 1500}[d.size]
    shape = (d.pick((1, 12)), n, n)
    return Case(
        op, [d.array(shape, d.pick(("float32", "int64", "bool")))], {"upper": d.pick((0, 1))}
    )


def _range(d: Draw, op: str) -> Case:
    n, dtype = (
        {"tiny": 5, "typical": 1500, "large": 1_000_000}[d.size],
        d.pick(("int64", "float32")),
    )
    return Case(op, [np.array(v, dtype) for v in (0, n, 1)])


def _sized(d: Draw, op: str) -> Case:
    """ConstantOfShape and EyeLike: ops whose only operand is a size."""
    n = {"tiny": 4, "typical": 256, "large": 3000}[d.size]
    if op == "EyeLike":
        return Case(op, [d.array((n, n), d.pick(("float32", "int64")))])
    return Case(op, [np.array([n, n], np.int64)])


def _reverse(d: Draw, op: str) -> Case:
    batch, tokens, width = d.tokens()
    lengths = d.array((batch,), "int64", 1, tokens + 1)
    attrs = {"batch_axis": 0, "time_axis": 1}
    return Case(op, [d.array((batch, tokens, width)), lengths], attrs)


def _compress(d: Draw, op: str) -> Case:
    shape, axis = d.shape(), d.pick((0, 1))
    return Case(op, [d.array(shape), d.array((shape[axis],), "bool")], {"axis": axis})


def _crop(d: Draw, op: str) -> Case:
    shape = d.image()
    wanted = np.array([shape[2] + d.pick((-1, 4)), shape[3] - 1], np.int64)
    return Case(op, [d.array(shape), wanted], {"axes": [2, 3]}, frozenset({1}))


FAMILIES: Final[dict[str, Family]] = {
    **rows("Gather GatherElements", _gather),
    **rows("GatherND ScatterND", _gather_nd),
    "ScatterElements": _scatter_elements,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Transpose": _transpose,
    "Pad": _pad,
    "Trilu": _trilu,
    "Range": _range,
    "ReverseSequence": _reverse,
    "Compress": _compress,
    "CenterCropPad": _crop,
    **rows("Expand Tile", _expand),
    **rows("ConstantOfShape EyeLike", _sized),
}

"""Ops that change shapes and types, or fill tensors."""

from __future__ import annotations

from typing import Final

import numpy as np

from bench.sweep.case import WIDELY_RUN, Array, Case
from bench.sweep.draw import FLOATS, INTS, Draw, Family, rows


def _reshape(d: Draw, op: str) -> Case:
    shape = d.shape()
    x = d.array(shape, d.pick((*FLOATS, "int64", "uint8")))
    wanted = np.array(d.pick([[-1], [0, -1], [shape[0], 1, -1]]), np.int64)
    return Case(op, [x, wanted], {}, frozenset({1}))


def _flatten(d: Draw, op: str) -> Case:
    return Case(op, [d.array(d.image(), d.pick(FLOATS))], {"axis": d.pick((1, 1, 2))})


def _ones(d: Draw, op: str) -> Case:
    """Squeeze and Unsqueeze."""
    shape = d.shape()
    axis = d.pick(range(len(shape)))
    dims = (*shape[:axis], 1, *shape[axis:]) if op == "Squeeze" else shape
    x = d.array(dims, d.pick((*FLOATS, "int64")))
    return Case(op, [x, np.array([axis], np.int64)], {}, frozenset({1}))


def _measure(d: Draw, op: str) -> Case:
    return Case(op, [d.array(d.shape())])


def _cast_like(d: Draw, op: str) -> Case:
    to = d.array((1,), d.pick((*FLOATS, "int64", "uint8")))
    return Case(op, [d.array(d.shape(), d.pick((*FLOATS, *INTS, "bool"))), to])


def _split_to_sequence(d: Draw, op: str) -> Case:
    shape = d.tokens()
    return Case(op, [d.array(shape), np.array(1, np.int64)], {"axis": 1}, frozenset({1}))


def _sequence(d: Draw, op: str) -> Case:
    shape = d.tokens()
    return Case(op, [d.array(shape) for _ in range(3)])


def _tensor_scatter(d: Draw, op: str) -> Case:
    """A KV cache with a few new rows."""
    batch, heads, rows_, size = d.pick([(1, 8, 512, 64), (4, 8, 128, 64), (1, 2, 8, 16)])
    cache, update = d.array((batch, heads, rows_, size)), d.array((batch, heads, 1, size))
    return Case(op, [cache, update, d.array((batch,), "int64", 0, rows_)], opset=24)


def _random(d: Draw, op: str) -> Case:
    dtype = d.pick((1, 1, 11))
    if op.endswith("Like"):
        return Case(op, [d.array(d.shape())], {"dtype": dtype, "seed": 1.0}, opset=WIDELY_RUN)
    attrs = {"shape": list(d.shape()), "dtype": dtype, "seed": 1.0}
    return Case(op, [], attrs, opset=WIDELY_RUN)


def _multinomial(d: Draw, op: str) -> Case:
    count, width = {"tiny": (1, 5), "typical": (8, 1000), "large": (64, 30000)}[d.size]
    attrs = {"sample_size": d.pick((1, 10)), "seed": 1.0}
    return Case(op, [d.array((count, width))], attrs, opset=WIDELY_RUN)


def _bernoulli(d: Draw, op: str) -> Case:
    return Case(op, [d.array(d.shape(), "float32", 0, 1)], {"seed": 1.0}, opset=WIDELY_RUN)


def _window(d: Draw, op: str) -> Case:
    n = {"tiny": 8, "typical": 512, "large": 100_000}[d.size]
    return Case(op, [np.array(n, np.int64)], {"periodic": d.pick((0, 1))})


def _mel(d: Draw, op: str) -> Case:
    operands: list[Array] = [
        np.array(d.pick((40, 80)), np.int64),
        np.array(d.pick((400, 512)), np.int64),
        np.array(16000, np.int64),
        np.array(0.0, np.float32),
        np.array(8000.0, np.float32),
    ]
    return Case(op, operands)


def _upsample(d: Draw, op: str) -> Case:
    scale = d.pick((2.0, 2.0, 4.0))
    scales = np.array([1, 1, scale, scale], np.float32)
    attrs = {"mode": d.pick(("nearest", "nearest", "linear"))}
    return Case(op, [d.array(d.image()), scales], attrs, frozenset({1}), opset=9)


FAMILIES: Final[dict[str, Family]] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    **rows("Squeeze Unsqueeze", _ones),
    **rows("Shape Size", _measure),
    "CastLike": _cast_like,
    "SplitToSequence": _split_to_sequence,
    "SequenceConstruct": _sequence,
    "TensorScatter": _tensor_scatter,
    **rows("RandomNormal RandomUniform RandomNormalLike RandomUniformLike", _random),
    "Multinomial": _multinomial,
    "Bernoulli": _bernoulli,
    **rows("HannWindow HammingWindow BlackmanWindow", _window),
    "MelWeightMatrix": _mel,
    "Upsample": _upsample,
}

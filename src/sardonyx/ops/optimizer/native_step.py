"""One native pass of AdamW or SGD over float32 arrays, which are updated in place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.errors import Fail
from sardonyx.graph.dtype import F32, F64, I64
from sardonyx.ops.arrays import Array

NO_CLIPPING: Final = -1.0
_N_STATES: Final = (
    3  # addresses of states in a record: `Param` in native/kernels/optimizer/params.h
)
_UNCORRECTED: Final = 1e9  # a number of steps whose bias correction is 1
_TINY: Final = 1e-30  # in place of a factor 0, which is divided by


def adamw_step(
    tensors: Sequence[Sequence[Array]],
    rate: float,
    step: int,
    attrs: Mapping[str, Any],
    max_norm: float = NO_CLIPPING,
    threads: int = 0,
) -> float:
    """Update parameters with AdamWOptimizer's attributes; `step` counts from 1.

    Each of `tensors` is a parameter, its gradient and both moments. Gradients are clipped to
    `max_norm` as they are read; returns their norm if there is one.

    The kernel computes torch's AdamW (mode 0). Mode 1 adds epsilon to the square root before its
    bias is corrected, and weights decay after the update: (p - lr u)(1 - lr w) is p (1 - r v) - r u
    with r = lr (1 - lr w) and r v = lr w.
    """
    epsilon, decay = attrs["epsilon"], attrs["weight_decay"]
    if attrs["adam_mode"] == 1:
        if attrs["correct_bias"]:
            epsilon /= math.sqrt(1 - attrs["beta"] ** step)
        kept = (1 - rate * decay) or _TINY
        rate, decay = rate * kept, decay / kept
    numbers = [rate, attrs["alpha"], attrs["beta"], epsilon, decay, 0, 1, 1]
    count = step - 1 if attrs["correct_bias"] else _UNCORRECTED  # the kernel adds 1
    return _run("adam_step", tensors, numbers, count, max_norm, threads)


def sgd_step(
    tensors: Sequence[Sequence[Array]],
    rate: float,
    max_norm: float = NO_CLIPPING,
    threads: int = 0,
) -> float:
    """Update parameters by their gradients; `tensors` and the result as for AdamW."""
    numbers = [rate, 0, 0, 0, 0, 0, 0, 1]
    return _run("sgd_step", [each[:2] for each in tensors], numbers, 0, max_norm, threads)


def _run(
    kernel: str,
    tensors: Sequence[Sequence[Array]],
    numbers: list[float],
    count: float,
    max_norm: float,
    threads: int,
) -> float:
    counters = np.full(len(tensors), count, np.float32)
    rows = []
    for i, (data, *others) in enumerate(tensors):
        addresses = [array.ctypes.data for array in (data, *others)]
        addresses += [0] * (2 + _N_STATES - len(addresses))
        rows.append((*addresses, counters[i:].ctypes.data, data.size, F32.onnx, 0, 0, 0, 0))
    records, group, norm = np.array(rows, np.int64), np.array([numbers], np.float64), np.zeros(1)
    error = native.call(
        kernel,
        [_operand(records, I64.onnx), _operand(group, F64.onnx)],
        [_operand(norm, F64.onnx)],
        [],
        [max_norm, 1.0, 0.0],  # the norm, the scale of the loss, squares of other gradients
        splits=0,
        threads=threads,
    )
    if error:
        raise Fail(error)
    return float(norm[0])


def _operand(array: Array, element_type: int) -> tuple[int, int, list[int], list[int]]:
    strides = [stride // array.itemsize for stride in array.strides]
    return array.ctypes.data, element_type, list(array.shape), strides

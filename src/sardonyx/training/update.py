"""One step of an optimizer: a native pass that updates all parameters and moments in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

import sardonyx._native as native
from sardonyx.base.shared_store import Array
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.training.optimizer_model import ADAMW, OptimizerModel

_N_STATES: Final = 3  # addresses of states in a record of native/kernels/optimizer/params.h
_UNCORRECTED: Final = 1e9  # a number of steps whose bias correction is 1
_TINY: Final = 1e-30  # in place of a factor 0, which is divided by
_FLOAT32: Final = 1  # element types of ONNX
_INT64: Final = 7
_FLOAT64: Final = 11


class Trained(NamedTuple):
    """A parameter, its gradient and its moments: contiguous arrays of float32."""

    name: str
    data: Array
    grad: Array
    moments: tuple[Array, ...]


def check_tensors(tensors: Trained) -> None:
    """Check that a parameter, its gradient and its moments can be updated together."""
    name, data, grad, moments = tensors
    if data.dtype != np.float32:
        raise InvalidArgument(f"the parameter {name} is {data.dtype}, and float32 is trained")
    for what, array in (("gradient", grad), *(("moment", moment) for moment in moments)):
        if array.dtype != data.dtype or array.shape != data.shape:
            raise InvalidArgument(
                f"the parameter {name} is {data.dtype}{list(data.shape)}, and its {what} "
                f"{array.dtype}{list(array.shape)}",
                hint="the checkpoint is of another model",
            )


def update(
    model: OptimizerModel, step: int, rate: float, tensors: Sequence[Trained], threads: int = 0
) -> None:
    """Update all parameters; `step` counts from 1. Gradients are clipped in place, if at all."""
    is_adam = model.op == ADAMW
    counters = np.full(len(tensors), step - 1, np.float32)  # the kernel adds 1
    if is_adam and not model.attributes["correct_bias"]:
        counters[:] = _UNCORRECTED
    records = np.array(
        [
            (
                *_addresses(t.data, t.grad),
                # SGD has no momentum: its moments are stored, and never read.
                *(_addresses(*t.moments) if is_adam else ()),
                *[0] * (_N_STATES - (len(t.moments) if is_adam else 0)),
                *_addresses(counters[i : i + 1]),
                *(t.data.size, _FLOAT32, 0, 0, 0, 0),
            )
            for i, t in enumerate(tensors)
        ],
        np.int64,
    )
    numbers = _adam_numbers(model, step, rate) if is_adam else [rate, 0, 0, 0, 0, 0, 0, 1]
    table, norm = np.array([numbers], np.float64), np.zeros(1)
    error = native.call(
        "adam_step" if is_adam else "sgd_step",
        [_operand(records, _INT64), _operand(table, _FLOAT64)],
        [_operand(norm, _FLOAT64)],
        [],
        [model.max_norm, 1.0, 0.0],  # the norm, the scale of the loss, squares of other gradients
        splits=0,
        threads=threads,
    )
    if error:
        raise Fail(error)
    if model.max_norm >= 0:
        _clip(tensors, model.max_norm / (float(norm[0]) + 1e-6))


def _adam_numbers(model: OptimizerModel, step: int, rate: float) -> list[float]:
    """Return the kernel's hyperparameters, which are those of torch's AdamW (mode 0).

    Mode 1 adds epsilon to the square root before its bias is corrected, and weights decay after
    the update: (p - lr u)(1 - lr w) is p (1 - r v) - r u with r = lr (1 - lr w), r v = lr w.
    """
    a = model.attributes
    epsilon, decay = a["epsilon"], a["weight_decay"]
    if a["adam_mode"] == 1:
        if a["correct_bias"]:
            epsilon /= math.sqrt(1 - a["beta"] ** step)
        kept = (1 - rate * decay) or _TINY
        rate, decay = rate * kept, decay / kept
    return [rate, a["alpha"], a["beta"], epsilon, decay, 0, 1, 1]


def _clip(tensors: Sequence[Trained], factor: float) -> None:
    """Scale the gradients, which the kernel only reads, as onnxruntime does."""
    if not factor >= 1:
        for t in tensors:
            np.multiply(t.grad, np.float32(factor), out=t.grad)


def _addresses(*arrays: Array) -> tuple[int, ...]:
    return tuple(array.ctypes.data for array in arrays)


def _operand(array: Array, element_type: int) -> tuple[int, int, list[int], list[int]]:
    strides = [stride // array.itemsize for stride in array.strides]
    return array.ctypes.data, element_type, list(array.shape), strides

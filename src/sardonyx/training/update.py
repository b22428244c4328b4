"""One step of an optimizer model over all parameters, in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.ops.optimizer.native_step import adamw_step, sgd_step
from sardonyx.training.optimizer_model import ADAMW, OptimizerModel


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
    arrays = [(t.data, t.grad, *t.moments) for t in tensors]
    if model.op == ADAMW:
        norm = adamw_step(arrays, rate, step, model.attributes, model.max_norm, threads)
    else:
        norm = sgd_step(arrays, rate, model.max_norm, threads)
    factor = model.max_norm / (norm + 1e-6)
    if model.max_norm >= 0 and not factor >= 1:
        for t in tensors:  # the kernel clips what it reads, onnxruntime the gradients themselves
            np.multiply(t.grad, np.float32(factor), out=t.grad)

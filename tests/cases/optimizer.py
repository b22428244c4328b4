"""Cases of the optimizers of ai.onnx.preview.training."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Array, Case, case, f32, f64, fails, of, pos

DOMAIN = "ai.onnx.preview.training"
GROUPS = {"Adagrad": 3, "Adam": 4, "Momentum": 3}
MOMENTUM = {"alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.01}


def step(op: str, count: int, *tensors: Array, **options: Any) -> Case:
    """One update of some tensors, whose gradients and states are made up."""
    groups = GROUPS[op]
    states = [pos(*t.shape).astype(t.dtype) * (k + 1) for k in range(groups - 1) for t in tensors]
    return case(
        op,
        of(0.1, tensors[0].dtype),
        of(count, np.int64),
        *tensors,
        *states,
        domain=DOMAIN,
        outputs=(groups - 1) * len(tensors),
        oracle="onnx",
        ulps=8,
        why="onnx's reference rounds its settings otherwise",
        **options,
    )


CASES = [
    step("Adagrad", 0, f32(3)),
    step("Adagrad", 4, f32(3), f32(2, 5), norm_coefficient=0.01, decay_factor=0.1, epsilon=1e-3),
    step("Adagrad", 1, f64(2, 3)),
    step("Adagrad", 1, f32(0)),
    step("Adam", 0, f32(3)),
    step("Adam", 3, f32(3), f32(2, 5), alpha=0.95, beta=0.9, norm_coefficient=0.01),
    step("Adam", 3, f32(3), f32(2), epsilon=1e-2),
    case(
        "Adam",
        of(0.1),
        of(3, np.int64),
        of([1.0, -2.0]),
        of([0.0, 0.0]),
        of([0.0, 0.0]),
        of([1.0, 1.0]),
        norm_coefficient_post=0.25,
        domain=DOMAIN,
        outputs=3,
        expect=(of([0.75, -1.5]), of([0.0, 0.0]), of([0.999, 0.999])),
    ),
    step("Adam", 7, f64(3)),
    step("Momentum", 0, f32(3), mode="standard", **MOMENTUM),
    step("Momentum", 5, f32(3), f32(4, 2), mode="standard", **MOMENTUM),
    step("Momentum", 5, f32(3), mode="nesterov", **MOMENTUM),
    step("Momentum", 0, f64(3), mode="nesterov", **MOMENTUM),
    fails("Adam", of(0.1), of(1, np.int64), f32(3), f32(3), domain=DOMAIN, match="needs 4 inputs"),
    fails(
        "Adagrad",
        of(0.1),
        of(1, np.int64),
        f32(3),
        f32(4),
        f32(3),
        domain=DOMAIN,
        match="differ in shape",
    ),
    fails(
        "Momentum",
        of(0.1),
        of(1, np.int64),
        f32(3),
        f32(3),
        f32(3),
        domain=DOMAIN,
        mode="random",
        match="mode",
        **MOMENTUM,
    ),
]

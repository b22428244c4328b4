"""Cases of MoE."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, f32, ms, no

NOT_ON_CPU: dict[str, Any] = {"oracle": "none", "why": "onnxruntime has it on other devices only"}


EXPERTS = {"x": f32(5, 6), "router": f32(5, 4), "first": f32(4, 8, 6), "second": f32(4, 6, 8)}


def moe(*more: Any, fused: bool = False, dtype: Any = np.float32, **options: Any) -> Case:
    """5 tokens of 6 features and 4 experts of 8; `more` are biases and the third layer."""
    first_bias, second_bias, *third = (*more, *[None] * (2 - len(more)))
    first = f32(4, 16, 6) if fused else EXPERTS["first"]
    inputs = (options.pop("x", EXPERTS["x"]), EXPERTS["router"], first, first_bias)
    inputs = (*inputs, EXPERTS["second"], second_bias, *third)
    inputs = tuple(None if a is None else a.astype(dtype) for a in inputs)
    refused = options.pop("match", None)
    if refused is not None:
        return no("MoE", *inputs, match=refused, **options)
    return ms("MoE", *inputs, **{"ulps": 32, **options})


BIASES = (f32(4, 8), f32(4, 6))


GLU: dict[str, Any] = {"activation_type": "swiglu", "activation_alpha": 1.7, "activation_beta": 1.0}


MOE = [
    moe(),
    moe(*BIASES, k=2),
    *(moe(*BIASES, k=2, activation_type=name) for name in ("gelu", "silu", "identity")),
    moe(*BIASES, k=3, normalize_routing_weights=1),
    moe(f32(4, 16), f32(4, 6), fused=True, k=2, swiglu_fusion=1, **GLU),
    moe(f32(4, 16), None, fused=True, k=2, swiglu_fusion=1, swiglu_limit=0.5, **GLU),
    moe(f32(4, 16), None, fused=True, k=2, swiglu_fusion=2, **GLU, **NOT_ON_CPU),
    moe(*BIASES, f32(4, 8, 6), f32(4, 8), k=2, **GLU, **NOT_ON_CPU),
    moe(*BIASES, f32(4, 8, 6), k=2, activation_type="silu", **NOT_ON_CPU),
    moe(x=f32(1, 5, 6), k=2),
    moe(
        *BIASES,
        k=2,
        dtype=np.float16,
        oracle="none",
        why="onnxruntime's result is far from its own in float32",
    ),
    moe(k=5, match="number of experts"),
    moe(k=0, match="k must be .*got 0"),
    moe(activation_type="tanh", match="must be one of relu"),
    moe(**GLU, match="needs fc3"),
    moe(x=f32(4, 6), match="rows than tokens"),
    moe(x=f32(5, 7), match="fc1_experts_weights"),
]


CASES = [
    *MOE,
]

"""Cases of CausalConvWithState of com.microsoft."""

from __future__ import annotations

from typing import Any

from tests.op_cases import Case, case, f16, f32, fails

DOMAIN = "com.microsoft"


WINDOWS: dict[str, Any] = {"oracle": "none", "why": "onnxruntime has windows on other devices only"}


def causal(*inputs: Any, **options: Any) -> Case:
    options = {"outputs": 2, "ulps": 16, **options}
    return case("CausalConvWithState", *inputs, domain=DOMAIN, **options)


def no_causal(*inputs: Any, match: str, **options: Any) -> Case:
    return fails("CausalConvWithState", *inputs, domain=DOMAIN, match=match, **options)


X, W = f32(2, 3, 7), f32(3, 1, 4)


CAUSAL = [
    causal(X, W),
    causal(X, W, f32(3), f32(2, 3, 3), activation="silu"),
    causal(X, W, None, f32(2, 3, 6), dilation=2, activation="swish"),
    causal(X, f32(3, 1, 1), f32(3)),
    causal(f32(2, 3, 1), W, f32(3), f32(2, 3, 3)),
    causal(f32(2, 7, 3), W, f32(3), f32(2, 3, 3), channels_last=1),
    causal(f32(2, 7, 3), W, channels_last=1, dilation=3),
    causal(f32(2, 7, 3, 2), f32(6, 1, 4), f32(6), f32(2, 3, 3, 2), channels_last=1),
    causal(X, W, None, f32(2, 2, 3, 3), state_window=2, **WINDOWS),
    causal(f32(2, 3, 1), W, None, f32(4, 2, 3, 3), state_window=4, **WINDOWS),
    causal(f16(2, 3, 7), f16(3, 1, 4), f16(3), ulps=8),
    no_causal(X, W, None, f32(2, 3, 4), match="past_state"),
    no_causal(X, f32(2, 1, 4), match="channels"),
    no_causal(X, W, activation="relu", match="activation"),
    no_causal(X, W, ndim=2, match="ndim is 2"),
    no_causal(X, W, dilation=0, match="dilation must be .*got 0"),
]


CASES = [
    *CAUSAL,
]

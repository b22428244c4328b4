"""Cases of LinearAttention of com.microsoft."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, bf16, case, f32, fails

DOMAIN = "com.microsoft"


WINDOWS: dict[str, Any] = {"oracle": "none", "why": "onnxruntime has windows on other devices only"}


def tokens(heads: tuple[int, int], *, length: int = 5, rule: str = "gated_delta") -> Any:
    """Query, key, value, no past, decay and rate, of 2 in a batch; heads of 4 and 3."""
    q, kv = heads
    key = f32(2, length, kv * 4)
    norm = np.sqrt(np.square(key.reshape(2, length, kv, 4)).sum(-1, keepdims=True))
    key = (key.reshape(2, length, kv, 4) / norm).reshape(key.shape)
    decay = -np.abs(f32(2, length, kv)) if "gated" in rule else None
    beta = 1 / (1 + np.exp(f32(2, length, kv))) if "delta" in rule else None
    return f32(2, length, q * 4), key, f32(2, length, kv * 3), None, decay, beta


def linear(heads: tuple[int, int], inputs: Any = None, **options: Any) -> Case:
    rule = options.get("update_rule", "gated_delta")
    given = tokens(heads, rule=rule) if inputs is None else inputs
    options = {"outputs": 2, "ulps": 32, **options}
    sizes = {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    return case("LinearAttention", *given, domain=DOMAIN, **sizes, **options)


def with_past(heads: tuple[int, int], past: Any, **options: Any) -> Any:
    given = tokens(heads, **options)
    return (*given[:3], past, *given[4:])


WIDE = (
    *(f32(1, 7, 34), f32(1, 7, 17) * np.float32(0.2), f32(1, 7, 131), None),
    *(-np.abs(f32(1, 7, 17)), np.abs(f32(1, 7, 1))),
)


LINEAR = [
    linear((4, 2)),
    linear((2, 2), update_rule="linear"),
    linear((2, 2), update_rule="gated", scale=0.7),
    linear((4, 2), update_rule="delta"),
    linear((2, 4)),
    linear((4, 2), with_past((4, 2), f32(2, 2, 4, 3))),
    linear((4, 2), with_past((4, 2), f32(2, 2, 4, 3), length=1)),
    linear((4, 2), with_past((4, 2), f32(3, 2, 2, 4, 3)), state_window=3, **WINDOWS),
    linear((4, 2), with_past((4, 2), f32(3, 2, 2, 4, 3), length=2), state_window=3, **WINDOWS),
    linear((4, 2), (*tokens((4, 2))[:4], -np.abs(f32(2, 5, 8)), tokens((4, 2))[5])),
    linear((2, 1), WIDE),
    linear((2, 1), tuple(None if x is None else x.astype(np.float16) for x in WIDE), ulps=8),
    linear(
        (2, 1),
        tuple(None if x is None else x.astype(bf16(1).dtype) for x in WIDE),
        oracle="none",
        why="onnxruntime has no kernel for bfloat16",
    ),
    fails(
        "LinearAttention",
        *tokens((4, 2)),
        domain=DOMAIN,
        q_num_heads=2**62,
        kv_num_heads=2,
        match="q_num_heads must be",
    ),
    fails(
        "LinearAttention",
        *tokens((3, 2)),
        domain=DOMAIN,
        q_num_heads=3,
        kv_num_heads=2,
        match="does not divide",
    ),
    fails(
        "LinearAttention",
        *tokens((4, 2)),
        domain=DOMAIN,
        q_num_heads=4,
        kv_num_heads=2,
        state_window=9,
        match="state_window must be .*got 9",
    ),
]


CASES = [
    *LINEAR,
]

"""Cases of n-bit ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import f32, ms, no

NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


NORM = {"K": 32, "block_size": 16}


def fields(rows: int, seed: int) -> tuple[Any, Any, Any]:
    """Weights of 4 bits, [rows, 32] in blocks of 16; their scales; and what they stand for."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 16, (rows, 2, 16))
    scales = rng.uniform(0.01, 0.1, (rows, 2)).astype(np.float32)
    packed = (numbers[..., ::2] | numbers[..., 1::2] << 4).astype(np.uint8)
    return packed, scales, ((numbers - 8) * scales[..., None]).reshape(rows, 32)


def rms(x: Any, scale: Any, epsilon: float) -> Any:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * scale


LINE, SKIP, SCALE = f32(2, 3, 32), f32(2, 3, 32) * 2, f32(32)


Q4, K4, V4 = fields(8, 1), fields(4, 2), fields(4, 3)


BOTH = (LINE + SKIP).astype(np.float64)


BOTH_NORMAL = rms(BOTH, SCALE, 1e-6)


GATE, UP = (LINE.astype(np.float64) @ w[2].T for w in (K4, V4))


FUSED_NBITS = [
    ms(
        "MatMulNBitsQkv",
        *(LINE, SKIP, SCALE, *Q4[:2], None, *K4[:2], f32(4), *V4[:2]),
        outputs=4,
        ulps=32,
        attrs=NORM,
        Nq=8,
        Nkv=4,
        expect=(
            *((BOTH_NORMAL @ Q4[2].T).astype(np.float32),),
            *((BOTH_NORMAL @ K4[2].T + f32(4)).astype(np.float32),),
            *((BOTH_NORMAL @ V4[2].T).astype(np.float32), BOTH.astype(np.float32)),
        ),
        **NOT_ON_CPU,
    ),
    ms(
        "MatMulNBitsMlp",
        *(LINE, None, None, *K4[:2], None, *V4[:2]),
        N=4,
        activation="silu",
        ulps=32,
        attrs=NORM,
        expect=((GATE / (1 + np.exp(-GATE)) * UP).astype(np.float32),),
        **NOT_ON_CPU,
    ),
    no(
        "MatMulNBitsMlp",
        *(LINE, SKIP, None, *K4[:2], None, *V4[:2]),
        N=4,
        activation="silu",
        match="norm_scale is missing",
        attrs=NORM,
    ),
    no(
        "MatMulNBitsMlp",
        *(LINE, None, None, *K4[:2], None, *V4[:2]),
        N=4,
        activation="tanh",
        match="must be one of silu",
        attrs=NORM,
    ),
    no(
        "MatMulNBitsMlp",
        *(LINE, None, SCALE, *K4[:2], None, *V4[:2]),
        N=4,
        activation="silu",
        outputs=2,
        match="skip, which is missing",
        attrs=NORM,
    ),
]


CASES = [
    *FUSED_NBITS,
]

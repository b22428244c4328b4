"""Cases of attention ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import f16, f32, ms, no

NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


ANGLES = f32(2, 5, 4)


PAIRS = [f16(2, 3, 5, 4) * np.float16(k) for k in (1, 2, 3, 4)]


COS, SIN = (f(ANGLES.astype(np.float64))[:, None] for f in (np.cos, np.sin))


PARTS_ATTENTION = [
    ms(
        "GemmaRotaryEmbedding",
        ANGLES,
        *PAIRS,
        outputs=2,
        ulps=8,
        expect=tuple(
            (x * COS + rotated * SIN).astype(np.float16) for x, rotated in (PAIRS[:2], PAIRS[2:])
        ),
        **NOT_ON_CPU,
    ),
]


GATED_ATTENTION = [
    ms("LinearAttentionGate", f32(2, 3, 4), f32(4), f32(4), f32(2, 3, 4), outputs=2, ulps=8),
    ms("LinearAttentionGate", f16(2, 3, 4), f32(4), f32(4), ulps=8),
    no("LinearAttentionGate", f32(2, 4), f32(4), f32(4), outputs=2, match="missing"),
]


CASES = [
    *PARTS_ATTENTION,
    *GATED_ATTENTION,
]

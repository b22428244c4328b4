"""Cases of softmax ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import f32, ms

NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


PARTS_SOFTMAX = [
    ms(
        "BiasSoftmax",
        f32(2, 3, 4, 5),
        f32(2, 1, 1, 5),
        axis=3,
        is_inner_broadcast=1,
        expect=(softmax(f32(2, 3, 4, 5) + f32(2, 1, 1, 5)),),
        **NOT_ON_CPU,
    ),
    ms(
        "BiasSoftmax",
        f32(2, 3, 4),
        f32(1, 3, 4),
        is_inner_broadcast=0,
        expect=(softmax((f32(2, 3, 4) + f32(1, 3, 4)).reshape(2, 12)).reshape(2, 3, 4),),
        **NOT_ON_CPU,
    ),
]


CASES = [
    *PARTS_SOFTMAX,
]

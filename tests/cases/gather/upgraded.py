"""Cases of gather ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import f32, i64, ms, no, of

NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


SAME_GATHER = [
    ms("GatherND", f32(3, 4, 5), of([[0, 1], [2, 3]], np.int32)),
    ms("GatherND", i64(3, 4), of([[[1]], [[-1]]], np.int64)),
    no("GatherND", f32(3, 4), of([[3]], np.int32), match="3"),
]


GATED_GATHER = [
    ms(
        "TorchEmbedding",
        *(f32(5, 3), i64(2, 3, low=0, high=5)),
        expect=(f32(5, 3)[i64(2, 3, low=0, high=5)],),
        **NOT_ON_CPU,
    ),
]


CASES = [
    *SAME_GATHER,
    *GATED_GATHER,
]

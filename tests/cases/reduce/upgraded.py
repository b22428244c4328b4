"""Cases of reduction ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import f16, f32, ms, of

NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


X, BIAS = f32(2, 3, 8), f32(8)


PARTS_REDUCE = [
    ms("IsAllFinite", X, f32(0), f16(3), expect=(of(True, bool),), **NOT_ON_CPU),
    ms("IsAllFinite", X, of([1, np.nan]), expect=(of(False, bool),), **NOT_ON_CPU),
    ms("IsAllFinite", of([np.inf]), isnan_only=1, expect=(of(True, bool),), **NOT_ON_CPU),
    ms("IsAllFinite", of([np.nan]), isinf_only=1, expect=(of(True, bool),), **NOT_ON_CPU),
]


CASES = [
    *PARTS_REDUCE,
]

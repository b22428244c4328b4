"""Cases of sampling ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from tests.op_cases import f32, ms

SAME_SAMPLE = [
    ms("GridSample", f32(1, 2, 4, 5), f32(1, 3, 3, 2), ulps=16),
    ms("GridSample", f32(1, 2, 4, 5), f32(1, 3, 3, 2), mode="nearest", padding_mode="border"),
    ms("GridSample", f32(1, 2, 4, 5), f32(1, 3, 3, 2), mode="bicubic", align_corners=1, ulps=64),
]


CASES = [
    *SAME_SAMPLE,
]

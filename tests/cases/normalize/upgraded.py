"""Cases of normalization ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from tests.op_cases import f16, f32, ms, no

GATES = f32(2, 3, 12)


GATED_NORMALIZE = [
    ms("GatedRMSNorm", GATES, f32(4), GATES * 2, ulps=16),
    ms("GatedRMSNorm", GATES, f32(12), GATES, activation="sigmoid", epsilon=0.1, ulps=16),
    ms("GatedRMSNorm", f16(5, 8), f16(8), f16(5, 8), activation="swish", ulps=8),
    no("GatedRMSNorm", GATES, f32(5), GATES, match="reshape"),
    no("GatedRMSNorm", GATES, f32(4), GATES, activation="relu", match="must be one of silu"),
]


CASES = [
    *GATED_NORMALIZE,
]

"""Cases of the hyper-connection and gated normalization ops of com.microsoft."""

from __future__ import annotations

from tests.op_cases import f16, f32, ms, no

STREAMS = f32(2, 3, 4, 5)


FLAT = f32(2, 3, 20)


BRANCHES = {"num_branches": 4}


SIDE = f32(2, 3, 5)


ENGRAM = (STREAMS, STREAMS * 2, SIDE, f32(4, 5), f32(4, 5) * 2)


MIX = [
    ms("BranchwiseRMSNorm", STREAMS, ulps=16),
    ms("BranchwiseRMSNorm", STREAMS, f32(4, 5), epsilon=0.1, ulps=16),
    ms("BranchwiseRMSNorm", FLAT, f32(20), ulps=16, **BRANCHES),
    ms("BranchwiseRMSNorm", FLAT, f32(5), ulps=16, **BRANCHES),
    ms("BranchwiseRMSNorm", f16(3, 4, 5), f32(5), ulps=8),
    no("BranchwiseRMSNorm", FLAT, num_branches=3, match="does not split"),
    no("BranchwiseRMSNorm", STREAMS, f32(7), match="7 numbers"),
    ms("HyperConnectionPreMix", STREAMS, f32(2, 3, 4), reduction_scale=0.5, ulps=16),
    ms("HyperConnectionPreMix", STREAMS, f32(2, 3, 4, 1), ulps=16),
    ms("HyperConnectionPreMix", FLAT, f32(2, 3, 4, 5), ulps=16, **BRANCHES),
    ms("HyperConnectionPreMix", FLAT, f32(2, 3, 20), ulps=16, **BRANCHES),
    no("HyperConnectionPreMix", STREAMS, f32(2, 3, 5), match="the gates"),
    ms("HyperConnectionPostMix", STREAMS, SIDE, f32(2, 3, 4), f32(2, 3, 4, 4), ulps=16),
    ms("HyperConnectionPostMix", STREAMS, SIDE, f32(2, 3, 4, 5), ulps=16),
    ms("HyperConnectionPostMix", FLAT, SIDE, f32(2, 3, 4, 1), ulps=16, **BRANCHES),
    no("HyperConnectionPostMix", STREAMS, f32(2, 3, 4), f32(2, 3, 4), match="block_output"),
    ms("EngramGate", *ENGRAM, ulps=16),
    ms("EngramGate", *ENGRAM, f32(4, 5), outputs=2, ulps=16),
    no("EngramGate", *ENGRAM[:4], f32(3, 5), match="query_norm_scale"),
    no("EngramGate", *ENGRAM, outputs=2, match="needs conv_norm_scale"),
]


CASES = [
    *MIX,
]

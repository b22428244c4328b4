"""Cases of FusedConv."""

from __future__ import annotations

from tests.op_cases import f16, f32, ms, no

X, W = f32(1, 2, 5, 6), f32(3, 2, 3, 3)


CONV = [
    ms("FusedConv", X, W, activation="Relu", ulps=16),
    ms("FusedConv", X, W, f32(3), activation="Tanh", pads=[1, 1, 1, 1], strides=[2, 1], ulps=16),
    ms("FusedConv", X, W, f32(3), activation="Sigmoid", auto_pad="SAME_UPPER", ulps=16),
    ms("FusedConv", X, W, None, f32(1, 3, 3, 4), activation="Relu", ulps=16),
    ms("FusedConv", X, W, activation="LeakyRelu", activation_params=[0.1], ulps=16),
    ms("FusedConv", X, W, activation="Clip", activation_params=[-1.0, 1.0], ulps=16),
    ms("FusedConv", X, W, activation="HardSigmoid", activation_params=[0.2, 0.4], ulps=16),
    ms("FusedConv", X, W, activation="HardSwish", ulps=16),
    ms("FusedConv", X, f32(2, 1, 3, 3), group=2, dilations=[2, 1], activation="Relu", ulps=16),
    ms("FusedConv", f16(1, 2, 5, 6), f16(3, 2, 3, 3), activation="Relu", oracle="none"),
    no("FusedConv", X, W, activation="LeakyRelu", match="needs a value for alpha"),
    no("FusedConv", X, W, activation="Cube", match="Cube"),
    no("FusedConv", X, W, None, f32(1, 3, 1, 1), activation="Relu", match="Z has another shape"),
]


CASES = [
    *CONV,
]

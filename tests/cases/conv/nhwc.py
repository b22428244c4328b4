"""Cases of NhwcConv and NhwcFusedConv."""

from __future__ import annotations

from typing import Any

from tests.op_cases import f16, f32, ms, no

NOT_ON_CPU: dict[str, Any] = {"oracle": "none", "why": "onnxruntime has it on other devices only"}


PIXELS, KERNEL = f32(1, 5, 6, 2), f32(3, 2, 3, 3)


FUSED_CONV = [
    ms("NhwcConv", PIXELS, KERNEL, f32(3), pads=[1, 1, 1, 1], **NOT_ON_CPU),
    ms("NhwcConv", f32(2, 7, 4), f32(4, 1, 3), group=4, strides=[2], **NOT_ON_CPU),
    ms("NhwcFusedConv", f16(1, 5, 6, 2), f16(3, 2, 3, 3), activation="Relu", **NOT_ON_CPU),
    ms("NhwcFusedConv", PIXELS, KERNEL, None, f32(1, 3, 4, 3), **NOT_ON_CPU),
    ms(
        "NhwcFusedConv",
        *(PIXELS, KERNEL, f32(3)),
        activation="Clip",
        activation_params=[0.0, 6.0],
        ulps=16,
        **NOT_ON_CPU,
    ),
    no("NhwcConv", f32(5, 6), KERNEL, match="batch, channels and spatial axes"),
    no("NhwcConv", f32(1, 5, 6, 3), KERNEL, match="channels of x"),
    no("NhwcFusedConv", PIXELS, KERNEL, None, f32(1, 3, 4, 4), match="Z has another shape"),
]


CASES = [
    *FUSED_CONV,
]

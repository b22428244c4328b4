"""Cases of elementwise ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, case, f16, f32, fails, ms, no, of

NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


def old(op: str, *inputs: Any, **options: Any) -> Case:
    """An op of the standard domain that later opsets do not have."""
    return case(op, *inputs, opset=7, **options)


def erf_gelu(x: Any) -> Any:
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def pairs(z: Any, dtype: Any = np.float32) -> Any:
    """Complex numbers as pairs in a last axis."""
    return np.stack((z.real, z.imag), axis=-1).astype(dtype)


def joined(x: Any) -> Any:
    return x[..., 0] + 1j * x[..., 1]


X, BIAS = f32(2, 3, 8), f32(8)


SUM = X.astype(np.float64) + BIAS


A, B = f32(3, 4, 2), f32(4, 2)


PARTS_ELEMENTWISE = [
    ms("BiasAdd", X, BIAS, X * 2, expect=((SUM + X * 2).astype(np.float32),), **NOT_ON_CPU),
    no("BiasAdd", X, f32(7), X, match="broadcast"),
    ms(
        "BiasSplitGelu",
        X,
        BIAS,
        expect=((SUM[..., :4] * erf_gelu(SUM[..., 4:])).astype(np.float32),),
        **NOT_ON_CPU,
    ),
    no("BiasSplitGelu", f32(2, 3, 3), f32(3), match="reshape"),
    ms("ComplexMul", A, B, expect=(pairs(joined(A) * joined(B)),), **NOT_ON_CPU),
    ms("ComplexMulConj", A, B, expect=(pairs(joined(A) * joined(B).conj()),), **NOT_ON_CPU),
    no("ComplexMul", f32(3, 3), f32(3, 3), match="do not add up"),
]


GATED_ELEMENTWISE = [
    ms("GatedAdd", X, X * 2, f32(2, 3, 1)),
    ms("GatedAdd", f16(2, 3, 8), f16(2, 3, 8), f16(2, 3, 1)),
    ms("ScaledSiLU", X, alpha=0.3, ulps=8),
    ms("ScaledSiLU", X, of(1.7), ulps=8),
    ms("ScaledSiLU", f16(2, 7), of(0.5), ulps=8),
]


IMAGE = f32(2, 3, 5, 6)


OLD_ELEMENTWISE = [
    old("Affine", f32(5), alpha=2.0, beta=0.5),
    old("Affine", f32(2, 3)),
    old("Scale", f32(2, 3), scale=2.5),
    old("ScaledTanh", f32(7), alpha=1.5, beta=0.7),
    old("ParametricSoftplus", f32(7), alpha=1.5, beta=0.7),
    old("ImageScaler", IMAGE, scale=2.0, bias=[1.0, -2.0, 0.5]),
    fails("ScaledTanh", f32(7), alpha=1.5, opset=7, match="needs the attribute beta"),
]


CASES = [
    *PARTS_ELEMENTWISE,
    *GATED_ELEMENTWISE,
    *OLD_ELEMENTWISE,
]

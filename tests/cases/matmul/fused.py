"""Cases of FusedGemm and FusedMatMul."""

from __future__ import annotations

from tests.op_cases import bf16, f32, f64, ms, no

A, B = f32(3, 5), f32(5, 4)


SETTINGS = {"activation_alpha": 0.3, "activation_beta": 0.6, "activation_gamma": 1.2}


GEMM = [
    ms("FusedGemm", A, B, activation="Relu", ulps=16),
    ms("FusedGemm", A, B, f32(4), activation="Sigmoid", alpha=0.5, beta=2.0, ulps=16),
    ms("FusedGemm", A.T.copy(), B.T.copy(), activation="Tanh", transA=1, transB=1, ulps=16),
    *(
        ms("FusedGemm", A, B, activation=name, ulps=16, **SETTINGS)
        for name in (
            "Elu",
            "HardSigmoid",
            "LeakyRelu",
            "Selu",
            "Softplus",
            "Softsign",
            "ThresholdedRelu",
            "Celu",
            "ParametricSoftplus",
            "ScaledTanh",
        )
    ),
    ms("FusedGemm", f64(3, 5), f64(5, 4), activation="Relu", oracle="none"),
    ms("FusedMatMul", f32(2, 3, 5), f32(5, 4), alpha=0.3, ulps=16),
    ms("FusedMatMul", f32(2, 5, 3), f32(2, 4, 5), transA=1, transB=1, ulps=16),
    ms("FusedMatMul", f32(3, 2, 5), f32(2, 5, 4), transBatchA=1, ulps=16),
    ms("FusedMatMul", f32(3, 2, 5), f32(3, 2, 4), transBatchA=1, transBatchB=1, transA=1, ulps=16),
    ms("FusedMatMul", f32(3, 2, 7, 5), f32(2, 7, 5, 4), transBatchA=1, ulps=16),
    ms("FusedMatMul", f32(5), f32(5, 4), transA=1, ulps=16),
    ms("FusedMatMul", f32(0, 5), f32(5, 4)),
    ms("FusedMatMul", bf16(3, 5), bf16(5, 4), oracle="none"),
    no("FusedMatMul", f32(3, 5), f32(4, 5), match="inner dimensions differ"),
    no("FusedMatMul", f32(3, 5), f32(5, 4), transBatchA=1, match="3 dims or more"),
    no("FusedGemm", A, B, activation="Selu", match="alpha and gamma"),
]


CASES = [
    *GEMM,
]

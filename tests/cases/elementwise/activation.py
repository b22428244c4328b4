"""Cases of the activations."""

from __future__ import annotations

from math import erf

import numpy as np

from tests.op_cases import bf16, case, f16, f32, f64, fails, i64, ints, of

inf, nan = np.inf, np.nan
EDGES = of([-200.0, -1.0, -0.0, 0.0, 0.3, 1.0, 200.0, nan])
ENDS = of([inf, -inf])

CASES = [
    *(
        case(op, x)
        for op in ("Relu", "LeakyRelu", "Elu", "Selu", "HardSigmoid", "Softplus", "Softsign")
        for x in (f32(2, 3, 7), f32(0, 2), f32(), EDGES)
    ),
    *(
        case(op, x)
        for op in ("Celu", "HardSwish", "ThresholdedRelu", "Mish", "Gelu", "Swish")
        for x in (f32(2, 17), f32(0), f32())
    ),
    *(case(op, f16(3, 5)) for op in ("Relu", "LeakyRelu", "Elu", "Selu", "Gelu", "Softplus")),
    *(case(op, bf16(9)) for op in ("Relu", "Elu", "Celu", "Gelu", "Swish", "HardSwish")),
    *(case(op, f64(3)) for op in ("Celu", "ThresholdedRelu", "Mish", "Swish")),
    case("HardSwish", f64(3), expect=(f64(3) * np.clip(f64(3) / 6 + 0.5, 0, 1),)),
    case("Gelu", f64(3), expect=(of([x / 2 * (1 + erf(x / 2**0.5)) for x in f64(3)], np.float64),)),
    *(case(op, ENDS) for op in ("Relu", "LeakyRelu", "Elu", "Softplus", "HardSigmoid")),
    case("Relu", of([nan, -1.0, 1.0]), expect=(of([nan, 0.0, 1.0]),)),
    case("Relu", ints(np.int8, 9)),
    case("Relu", ints(np.int32, 9)),
    case("LeakyRelu", f32(9), alpha=0.3),
    case("Elu", f32(9), alpha=2.5),
    case("Selu", f32(9), alpha=2.0, gamma=3.0),
    case("Celu", f32(9), alpha=0.5),
    case("Celu", f32(2, 3), opset=12, alpha=2.0),
    case("HardSigmoid", f32(9), alpha=0.6, beta=0.1),
    case("ThresholdedRelu", f32(9), alpha=0.2),
    case("Swish", f32(9), alpha=0.5),
    case("Gelu", f32(4, 5), approximate="tanh"),
    case("Gelu", of([-1e9, -30.0, 0.0, 30.0])),
    fails("Gelu", f32(2), approximate="fast", match="none or tanh, got fast"),
    case("Shrink", f32(17), lambd=0.4, bias=0.2),
    case("Shrink", f64(5), oracle="onnx", why="onnxruntime rounds doubles to float32"),
    case("Shrink", ints(np.int8, 9), lambd=1.5, bias=1.0),
    case("Shrink", ints(np.uint8, 9), lambd=2.0),
    case("Shrink", f16(9), lambd=0.5, bias=0.1, oracle="onnx"),
    case("PRelu", f32(2, 3, 4), f32(3, 1)),
    case("PRelu", f32(2, 3, 4), f32(1)),
    case("PRelu", f32(2, 3), f32(2, 3)),
    case("PRelu", f64(4), f64(4)),
    case("PRelu", f16(4, 2), f16(2), oracle="onnx"),
    case("PRelu", i64(7), i64(1), oracle="onnx"),
    fails("PRelu", f32(2, 3), f32(4), match="does not broadcast to the input: 4"),
    fails("PRelu", f32(3), f32(2, 3), match="1 dims more than"),
    *(
        case("PRelu", x, slope, opset=6, expect=(np.where(x < 0, x * slope.reshape(to), x),))
        for x, slope, to in (
            (f32(2, 3, 4, 5), f32(3), (3, 1, 1)),
            (f32(2, 3), f32(3), (3,)),
            (f32(2, 3, 4), f32(1), (1,)),
            (f32(4), f32(1), (1,)),
        )
    ),
    case("Selu", f32(5), opset=1, oracle="none", why="no oracle runs opset 1", expect=(
        np.float32(1.0507) * np.where(f32(5) > 0, f32(5), np.float32(1.6732) * np.expm1(f32(5))),
    )),
    case("LeakyRelu", f32(5), opset=1, alpha=0.5, consumed_inputs=[0],
         expect=(np.where(f32(5) < 0, f32(5) * np.float32(0.5), f32(5)),)),
    case("Elu", f32(5), opset=6, alpha=0.5),
    case("SwiGLU", f32(2, 7), f32(2, 7)),
    case("SwiGLU", f64(3), f64(3), alpha=1.5),
    case("SwiGLU", f16(5), f16(5)),
    fails("SwiGLU", f32(2, 3), f32(3), match="the same shape"),
    fails("SwiGLU", f32(2), f32(3), match="gate and value differ: 2 and 3"),
]  # fmt: skip

"""Cases of arithmetic, comparison, logical and rounding ops."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from tests.op_cases import bf16, bools, case, f16, f32, f64, fails, i64, ints, of, pos

inf, nan = np.inf, np.nan
F8 = ml_dtypes.float8_e5m2
EDGES = of([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 0.5, -2.5, 1e-30])
WIDE = of([0.0, -0.0, 1e-8, 0.7, -2.1, 3.0, -3.0, 5.9, 30.0, inf, -inf, nan], np.float64)

UNARY = [
    *(
        case(op, x)
        for op in ("Abs", "Neg", "Ceil", "Floor", "Round", "Sign", "Exp", "Tanh", "Sigmoid", "Atan")
        for x in (f32(2, 3, 7), f16(5), f64(3, 1), f32(0, 4), f32(), EDGES)
    ),
    *(
        case(op, x)
        for op in ("Sin", "Cos", "Tan", "Sinh", "Cosh", "Asinh")
        for x in (f32(17), f64(4, 2), f32(0), f32())
    ),
    *(case("Erf", x) for x in (f32(17), f32(0), f32())),
    *(case(op, x) for op in ("Sqrt", "Log", "Reciprocal") for x in (pos(31), f32(5), EDGES)),
    *(case(op, np.tanh(f32(33))) for op in ("Asin", "Acos", "Atanh")),
    case("Acosh", pos(9) + np.float32(1)),
    *(case(op, bf16(13), oracle="onnx") for op in ("Abs", "Neg", "Exp", "Sqrt", "Erf", "Tanh")),
    case("Erf", WIDE, expect=(of([math.erf(x) for x in WIDE], np.float64),)),
    case("Erf", of([0, 1, -1, 40], np.int32), opset=9, expect=(of([0, 0, 0, 1], np.int32),)),
    case("Round", of([0.5, 1.5, 2.5, -0.5, -1.5, 1e10])),
    case("Sigmoid", of([-1000.0, 1000.0, -88.0, 88.0])),
    *(case("Abs", ints(t, 4, 3)) for t in (np.int8, np.int32, np.int64, np.uint8)),
    case("Abs", of([-128], np.int8), expect=(of([-128], np.int8),)),
    case("Neg", ints(np.int8, 6)),
    case("Sign", ints(np.int64, 6)),
    case("Not", bools(2, 5)),
    *(case("BitwiseNot", ints(t, 5)) for t in (np.uint8, np.int16, np.int64)),
    case("Abs", f32(3), opset=1, consumed_inputs=[0], expect=(np.abs(f32(3)),)),
    case("Exp", f32(2, 2), opset=6),
    fails("Exp", ints(np.int32, 3), match="is i32; supported types"),
    fails("Sqrt", f32(2), f32(2), match="takes 1 inputs"),
]

ARITHMETIC = [
    *(
        case(op, a, b)
        for op in ("Add", "Sub", "Mul", "Div")
        for a, b in (
            (f32(2, 3, 5), f32(5)),
            (f32(2, 1, 5), f32(3, 1)),
            (f32(), f32(4)),
            (f32(0, 3), f32(3)),
            (f64(7), f64(1)),
            (f16(3, 3), f16(3)),
            (i64(2, 4), i64(4, low=1)),
            (ints(np.int32, 6), ints(np.int32, 1, low=1)),
            (EDGES, EDGES[::-1].copy()),
        )
    ),
    case("Add", bf16(4, 3), bf16(3), oracle="onnx"),
    case("Add", of([250], np.uint8), of([10], np.uint8), expect=(of([4], np.uint8),)),
    case("Mul", of([100], np.int8), of([3], np.int8), expect=(of([44], np.int8),)),
    case("Sub", of([1], np.uint32), of([2], np.uint32), expect=(of([2**32 - 1], np.uint32),)),
    case("Div", of([7, -7, 7, -7]), of([2, 2, -2, -2])),
    case("Div", of([7, -7, 7, -7], np.int32), of([2, 2, -2, -2], np.int32)),
    case("Div", of([-128, 127], np.int8), of([-1, -1], np.int8), oracle="none", why="overflow",
         expect=(of([-128, -127], np.int8),)),
    fails("Div", i64(3), of([0], np.int64), match="integer division by zero"),
    case("Mod", ints(np.int32, 9), of([4], np.int32)),
    *(
        case(op, ints(t, 37, low=-99, high=99), ints(t, 37, low=1, high=9))
        for op in ("Div", "Mod")
        for t in (np.int32, np.int64, np.int16)
    ),
    case("Div", of([-(2**31), 7, -7] * 6, np.int32), of([-1], np.int32), oracle="none",
         why="overflow", expect=(of([-(2**31), -7, 7] * 6, np.int32),)),
    case("Div", of([2**62, -(2**62), 2**53 + 1] * 6, np.int64), of([3], np.int64)),
    case("Mod", ints(np.int64, 9), of([-4], np.int64)),
    case("Mod", ints(np.int64, 9), of([-4], np.int64), fmod=1),
    case("Mod", ints(np.uint8, 9), of([4], np.uint8)),
    case("Mod", f32(9), of([0.5]), fmod=1),
    case("Mod", f16(9), of([-0.5], np.float16), fmod=1),
    case("Mod", of([5.5, -5.5, inf, 1.0, -1.0, 0.0]), of([-2.0, 2.0, 1.0, inf, inf, -3.0]),
         expect=(of([-0.5, 0.5, nan, 1.0, inf, -0.0]),)),
    fails("Mod", i64(3), of([0], np.int64), match="integer remainder by zero"),
    case("Pow", pos(3, 4), f32(4)),
    case("Pow", f32(5), of([2.0])),
    case("Pow", f32(5), of([3], np.int64)),
    case("Pow", of([-1.0]), of([2**24 + 1], np.int64), expect=(of([-1.0]),)),
    case("Pow", i64(5), of([3], np.int64)),
    case("Pow", of([2, 3, -1, 1, -7], np.int32), of([-1, 2**33, -3, -2, 3], np.int64),
         expect=(of([0, 1, -1, 1, -343], np.int32),)),
    case("Pow", of([-1, -1], np.int64), of([2**64 - 1, 2**63], np.uint64),
         expect=(of([-1, 1], np.int64),)),
    case("Pow", of([2, 3], np.int32), of([0.5, 2.0])),
    case("Pow", f16(5), of([2], np.int32), oracle="onnx"),
    case("Pow", of([0.0, inf, nan, 1.0, -8.0]), of([0.0, -1.0, 0.0, nan, 0.5])),
    case("BitShift", ints(np.uint8, 7, high=200), of([3], np.uint8), direction="LEFT"),
    case("BitShift", ints(np.uint64, 7, high=200), of([3], np.uint64), direction="RIGHT"),
    case("BitShift", of([-5, 5, -5, 5], np.int16), of([1, 1, 16, -1], np.int16), direction="RIGHT",
         expect=(of([-3, 2, -1, 0], np.int16),)),
    case("BitShift", of([1, 1, 3], np.int8), of([7, 8, -1], np.int8), direction="LEFT",
         expect=(of([-128, 0, 0], np.int8),)),
    fails("BitShift", of([1], np.uint8), of([1], np.uint8), direction="UP", match="LEFT or RIGHT"),
    *(
        case(op, ints(np.uint8, 3, 4, high=250), ints(np.uint8, 4, high=250))
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    ),
    fails("Add", f32(2, 3), f32(2, 4), match="do not broadcast: 3 and 4"),
    fails("Add", f32(2), f64(2), match="must agree"),
]  # fmt: skip

LEFT = np.abs(f32(2, 3, 4, 5))
OLD = [
    *(
        case(op, LEFT, pos(*shape), opset=6, broadcast=1, axis=axis,
             expect=(numpy(LEFT, pos(*shape).reshape(to)),))
        for op, numpy in (("Add", np.add), ("Sub", np.subtract), ("Pow", np.power))
        for shape, axis, to in (
            ((3, 4), 1, (3, 4, 1)), ((2,), 0, (2, 1, 1, 1)), ((4,), -2, (4, 1)), ((5,), 3, (5,)),
        )
    ),
    case("Div", f32(2, 3, 4), pos(3, 4), opset=6, broadcast=1, expect=(f32(2, 3, 4) / pos(3, 4),)),
    case("And", bools(2, 3), bools(2), opset=1, broadcast=1, axis=0,
         expect=(bools(2, 3) & bools(2)[:, None],)),
    case("Clip", f32(7), opset=6, attrs={"min": -0.5, "max": 0.5}),
    case("Clip", f32(7), opset=6, attrs={"max": 0.5}),
    case("Clip", of([inf, -inf, nan, 1.0]), opset=6,
         expect=(of([3.4028235e38, -3.4028235e38, nan, 1.0]),)),
    case("Clip", f64(7), opset=6, attrs={"min": -0.5}, oracle="onnx"),
    case("Sum", f32(2, 3), f32(2, 3), opset=6),
    case("Max", f32(2, 3), -f32(2, 3), opset=1, consumed_inputs=[0, 0],
         expect=(np.abs(f32(2, 3)),)),
]  # fmt: skip

LOGIC = [
    *(
        case(op, bools(2, 3), bools(3))
        for op in ("And", "Or", "Xor")
    ),
    *(
        case(op, a, b)
        for op in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
        for a, b in (
            (i64(2, 9), i64(9)),
            (EDGES, EDGES[::-1].copy()),
            (f32(3, 1), f32(2)),
            (ints(np.int32, 8), of([0], np.int32)),
            (f32(0), f32(1)),
        )
    ),
    case("Less", bf16(7), bf16(1), oracle="onnx"),
    case("Greater", ints(np.uint8, 5), ints(np.uint8, 1), oracle="onnx"),
    case("Equal", of(["a", "b", "ä"], object), of(["a"], object),
         expect=(of([True, False, False], bool),)),
    case("Equal", bools(4), bools(1)),
    fails("Less", bools(2), bools(2), match="is bool; supported types"),
    case("IsNaN", EDGES),
    case("IsNaN", EDGES.astype(np.float16)),
    case("IsNaN", of([1, nan, inf], F8), expect=(of([False, True, False], bool),)),
    case("IsInf", EDGES),
    case("IsInf", EDGES, detect_negative=0),
    case("IsInf", EDGES, detect_positive=0),
    case("IsInf", EDGES, detect_positive=0, detect_negative=0),
    case("IsInf", of([1, nan, -inf], F8), expect=(of([False, False, True], bool),)),
    case("Where", bools(2, 1, 3), f32(4, 1), f32(3)),
    case("Where", bools(3), i64(3), i64(1)),
    case("Where", bools(2), of(["a", "b"], object), of(["c"], object)),
    case("Where", bools(2), of([1 + 2j, 3], np.complex64), of([0], np.complex64), oracle="onnx"),
    case("Where", bools(0, 3), f64(3), f64(1)),
    fails("Where", f32(2), f32(2), f32(2), match="is f32; supported types: bool"),
]  # fmt: skip

VARIADIC = [
    *(
        case(op, f32(2, 3), f32(3), f32(2, 1))
        for op in ("Max", "Min", "Sum", "Mean")
    ),
    *(case(op, f32(4)) for op in ("Max", "Min", "Sum", "Mean")),
    *(case(op, f16(4, 5), f16(5), f16(1)) for op in ("Max", "Sum", "Mean")),
    *(case(op, of([1, nan, 2]), of([nan, 1, 3])) for op in ("Max", "Min")),
    *(case(op, ints(t, 6), ints(t, 1)) for op in ("Max", "Min") for t in (np.int32, np.uint64)),
    case("Max", ints(np.int8, 6), ints(np.int8, 1), oracle="onnx"),
    case("Sum", f64(0, 2), f64(2)),
    fails("Max", f32(2), i64(2), match="same type, got f32 and i64"),
    case("Clip", f32(3, 5), of(-0.3), of(0.4)),
    case("Clip", f32(9), of(-0.3), None),
    case("Clip", f32(9), None, of(0.4)),
    case("Clip", f32(9)),
    case("Clip", f32(9), of(1.0), of(-1.0)),
    case("Clip", of([nan, inf, -inf, 2.0]), of(-1.0), of(1.0)),
    case("Clip", ints(np.int8, 9), of(-2, np.int8), of(3, np.int8)),
    case("Clip", i64(9), of(-2, np.int64), None),
    case("Clip", f16(9), of(-0.5, np.float16), of(0.5, np.float16)),
    fails("Clip", f32(3), of([0.0, 1.0]), match="min of Clip is one number"),
]  # fmt: skip

ENDS = of([inf, -inf, nan, 0.0, -0.0])
POWERS = of([4.0, -4.0, 0.0, -0.0, inf, -inf, nan])
AROUND_VECTORS = (1, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 1009, 4099)
SIZES = [
    *(case(op, f32(n)) for n in AROUND_VECTORS for op in ("Exp", "Sigmoid", "Floor", "Neg")),
    *(case(op, f32(n), f32(n)) for n in AROUND_VECTORS for op in ("Add", "Max", "Less")),
    *(case("Mul", ints(np.int8, n), ints(np.int8, n), oracle="onnx") for n in AROUND_VECTORS),
    *(case("Where", bools(n), f64(n), f64(1)) for n in AROUND_VECTORS),
    *(case("Add", f16(n), f16(1)) for n in AROUND_VECTORS),
    *(case("Mul", f32(3, n), f32(3, 1)) for n in (255, 256, 257, 4097)),
    *(case("Sub", f32(2, n, 5), f32(n, 1)) for n in (51, 1000)),
    *(case(op, EDGES) for op in ("Sin", "Cos", "Erf", "Sinh", "Cosh", "Asinh")),
    *(
        case(op, of([inf, -inf, nan, 0.0, -0.0]))
        for op in ("Tan", "Asin", "Acos", "Acosh", "Atanh")
    ),
    *(case("Sin", of([x, -x])) for x in (8191.0, 8193.0, 1e5, 1e30)),
    *(case("Pow", POWERS, of(x)) for x in (0.5, -0.5, -1.0, 2.0, 3.0)),
]

CASES = [*UNARY, *ARITHMETIC, *OLD, *LOGIC, *VARIADIC, *SIZES]

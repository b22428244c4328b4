"""Cases of the reductions, ArgMax, ArgMin, CumSum and CumProd."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from tests.op_cases import bf16, bools, case, f16, f32, f64, fails, i64, ints, of, pos

inf, nan = np.inf, np.nan
SUMS = ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")
NAMES = (*SUMS, "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSum")


def axes(*numbers: int) -> np.ndarray:
    return of(numbers, np.int64)


EMPTY = {
    "ReduceSum": 0.0, "ReduceL1": 0.0, "ReduceL2": 0.0, "ReduceSumSquare": 0.0, "ReduceProd": 1.0,
    "ReduceMax": -inf, "ReduceMin": inf, "ReduceLogSum": -inf, "ReduceLogSumExp": -inf,
    "ReduceMean": nan,
}  # fmt: skip

LENGTHS = (1, 15, 16, 17, 31, 64, 127, 129, 1009)
SUBSETS = [c for n in (1, 2, 3) for c in combinations(range(4), n)]
NANS = of([[1, nan, 3, nan], [2, 5, 5, 1], [nan, nan, nan, nan]])

# Sizes around those of vectors, and all ways in which reduced and kept axes alternate.
KERNELS = [
    *(case(op, f32(3, n), axes(1), ulps=8) for op in ("ReduceSum", "ReduceMean") for n in LENGTHS),
    *(case(op, f32(n, 19), axes(0), ulps=8) for op in ("ReduceSum", "ReduceMax") for n in LENGTHS),
    *(case("ReduceSum", f32(5, n), axes(0), ulps=8) for n in LENGTHS),
    *(case("ReduceMin", f32(3, n), axes(1)) for n in LENGTHS),
    *(case("ReduceLogSumExp", f32(3, n), axes(1), ulps=8) for n in LENGTHS),
    *(case(op, f32(3, 4, 5, 6), axes(*c), keepdims=0, ulps=8)
      for op in ("ReduceSum", "ReduceMax") for c in SUBSETS),
    *(case(op, f32(2, 3, 1, 35), axes(0, 3), ulps=16) for op in SUMS),
    *(case(op, ints(t, 5, 37), axes(1), oracle="none", why="oracles lack some of the types")
      for op in ("ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceProd", "ReduceMin")
      for t in (np.int32, np.int64, np.uint32, np.uint64)),
    *(case(op, ints(t, 9, 130), axes(0), oracle="onnx") for op in ("ReduceMax", "ReduceMin")
      for t in (np.int8, np.uint8)),
    *(case(op, t(7, 40), axes(0), oracle="none", why="oracles round each step")
      for op in (*SUMS, "ReduceMax", "ReduceMin") for t in (f16, bf16)),
    *(case(op, t(7, 40), axes(1), oracle="none", why="oracles round each step")
      for op in (*SUMS, "ReduceMax", "ReduceMin") for t in (f16, bf16)),
    case("ReduceSum", pos(1000003), ulps=2, oracle="none", why="oracles add in float32"),
    case("ReduceMean", pos(1000003), ulps=2, oracle="none", why="oracles add in float32"),
    case("ReduceSum", pos(70001, 3), axes(0), ulps=2, oracle="none", why="the same"),
    case("ReduceMax", f32(70001)),
    case("ReduceMax", f32(70001, 2), axes(0)),
    case("ReduceL2", of([1e30, 1e30]), expect=(of([2**0.5 * 1e30]),)),
    *(case(op, NANS, axes(a), oracle="onnx") for op in ("ReduceMax", "ReduceMin") for a in (0, 1)),
    *(case(op, of([[inf, -inf, 1]]), axes(1)) for op in ("ReduceMax", "ReduceMin", "ReduceSum")),
    *(case(op, NANS, axis=1, keepdims=0, oracle="onnx") for op in ("ArgMax", "ArgMin")),
    *(case(op, NANS, axis=0, oracle="onnx") for op in ("ArgMax", "ArgMin")),
    *(case(op, x, axis=1, select_last_index=1, oracle="onnx") for op in ("ArgMax", "ArgMin")
      for x in (NANS, of([[2, 5, 5, 2]]))),
    *(case("ArgMax", f32(2, n), axis=1) for n in (*LENGTHS, 2050)),
    *(case("ArgMin", f32(5, n), axis=0) for n in LENGTHS),
    *(case("ArgMax", ints(t, 7, 19), axis=a, oracle="onnx", select_last_index=last)
      for t in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
      for a in (0, 1) for last in (0, 1)),
    *(case("CumSum", f32(3, n), of(a, np.int64), reverse=n % 2, ulps=32)
      for n in LENGTHS for a in (0, 1)),
    *(case("CumSum", f32(19, 37), of(1, np.int64), reverse=r, exclusive=e, ulps=32)
      for r in (0, 1) for e in (0, 1)),
    case("CumSum", f16(4, 70), of(1, np.int64), oracle="none", why="oracles round each step"),
]  # fmt: skip

CASES = [
    *KERNELS,
    *(case(op, pos(2, 3, 7), axes(*a), ulps=16) for op in NAMES for a in ((1,), (-1, 0))),
    *(case(op, pos(2, 3, 7), axes(2, 1), keepdims=0, ulps=16) for op in NAMES),
    *(case(op, pos(3, 5), ulps=16) for op in NAMES),
    *(case(op, pos(2, 3), noop_with_empty_axes=1, oracle="onnx", ulps=16) for op in NAMES),
    *(case(op, f64(4, 3) ** 2 + 1, axes(0), ulps=16) for op in NAMES),
    *(case(op, pos(3, 5).astype(np.float16), axes(1), oracle="onnx", ulps=2,
           why="oracles round each step of a float16 sum") for op in ("ReduceMax", "ReduceMin")),
    *(case(op, f32(2, 0, 3), axes(1), expect=(np.full((2, 1, 3), v, np.float32),))
      for op, v in EMPTY.items()),
    *(case(op, f32(0, 3), axes(1)) for op in ("ReduceSum", "ReduceMax", "ReduceProd")),
    *(case(op, f32()) for op in ("ReduceSum", "ReduceMax", "ReduceProd")),
    *(case(op, of([[1, nan], [2, 3]]), axes(1)) for op in ("ReduceSum", "ReduceProd")),
    *(case(op, of([[1, nan], [2, 3]]), axes(1), expect=(of([[nan], [v]]),))
      for op, v in (("ReduceMax", 3), ("ReduceMin", 2))),
    *(case(op, ints(np.int32, 4, 6), axes(1)) for op in ("ReduceSum", "ReduceMax", "ReduceProd")),
    *(case(op, i64(4, 6), axes(0)) for op in ("ReduceSum", "ReduceMin", "ReduceL1")),
    case("ReduceSum", of([2**31 - 1, 1], np.int32), expect=(of([-(2**31)], np.int32),)),
    case("ReduceMean", of([-7, 2], np.int32), expect=(of([-2], np.int32),)),
    case("ReduceMean", f16(3, 700), axes(1), oracle="none", why="no oracle keeps float32 totals",
         expect=(f16(3, 700).astype(np.float64).mean(1, keepdims=True).astype(np.float16),)),
    case("ReduceSum", bf16(2, 9), axes(1), oracle="onnx", ulps=8, why="it adds in bfloat16"),
    case("ReduceMax", bools(3, 4), axes(1)),
    case("ReduceMin", bools(3, 4), axes(0), keepdims=0),
    case("ReduceMax", bools(2, 0), axes(1), expect=(of([[False], [False]], bool),)),
    case("ReduceMax", ints(np.uint8, 5)),
    case("ReduceMax", of([], np.int8), expect=(of([-128], np.int8),)),
    case("ReduceLogSumExp", of([[1000.0, 1000.0], [-inf, -inf], [inf, 0.0]]), axes(1),
         expect=(of([[1000.6931], [-inf], [inf]]),)),
    case("ReduceLogSumExp", of([[np.nan, 1.0], [np.nan, inf], [inf, np.nan], [-inf, np.nan]]),
         axes(1), expect=(of([[np.nan]] * 4),)),
    case("ReduceL2", of([3, 4], np.int32), expect=(of([5], np.int32),)),
    case("ReduceLogSum", of([10, 13], np.int32), opset=18, expect=(of([3], np.int32),)),
    case("ReduceLogSumExp", of([10, 10], np.int64), opset=13, keepdims=0, attrs={"axes": [0]},
         expect=(of(10, np.int64),)),
    *(case(op, pos(2, 3, 4), opset=11, attrs={"axes": [0, -1]}, ulps=16) for op in NAMES),
    *(case(op, pos(2, 3, 4), opset=11, keepdims=0, ulps=16) for op in NAMES),
    case("ReduceMean", f32(2, 3), opset=17, attrs={"axes": [1]}),
    case("ReduceSum", f32(2, 3), opset=1, attrs={"axes": [1]}, keepdims=0),
    case("ReduceSum", f32(3, 100, 7), axes(1), ulps=8),
    fails("ReduceSum", f32(2, 3), axes(2), match=r"axis 2 is outside \[-2, 2\)"),
    fails("ReduceMax", f32(2, 3), axes(0, -2), match="names one dimension twice"),
    *(case(op, i64(3, 4, 5), axis=axis) for op in ("ArgMax", "ArgMin") for axis in (0, 1, -1)),
    *(case(op, i64(3, 9, high=-6), axis=1, keepdims=0) for op in ("ArgMax", "ArgMin")),
    *(case(op, i64(3, 9, high=-6), axis=1, select_last_index=1) for op in ("ArgMax", "ArgMin")),
    *(case(op, f32(2, 7)) for op in ("ArgMax", "ArgMin")),
    case("ArgMax", f16(3, 5), axis=1, oracle="onnx"),
    case("ArgMax", bf16(3, 5), axis=1, oracle="onnx"),
    case("ArgMax", f32(3, 5), opset=11, axis=1),
    fails("ArgMin", f32(3, 0), axis=1, match="nothing to choose from along axis 1"),
    fails("ArgMax", f32(3), axis=1, match=r"axis 1 is outside \[-1, 1\)"),
    *(case("CumSum", f32(3, 5), of(axis, np.int64)) for axis in (0, 1, -1)),
    *(
        case(op, x, of([1], np.int32), exclusive=exclusive, reverse=reverse, ulps=8)
        for op in ("CumSum", "CumProd")
        for x in (f32(2, 5), i64(2, 5))
        for exclusive in (0, 1)
        for reverse in (0, 1)
    ),
    case("CumSum", f64(0, 3), of(0, np.int64), exclusive=1),
    case("CumProd", f16(6), of(0, np.int64), oracle="onnx", ulps=4),
    case("CumSum", ints(np.int32, 7), of(0, np.int32), opset=11),
    fails("CumSum", f32(3), of(1, np.int64), match=r"axis 1 is outside \[-1, 1\)"),
]  # fmt: skip

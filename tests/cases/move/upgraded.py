"""Cases of move ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, case, f32, fails, i64, ms, no, of


def old(op: str, *inputs: Any, **options: Any) -> Case:
    """An op of the standard domain that later opsets do not have."""
    return case(op, *inputs, opset=7, **options)


SAME_MOVE = [
    ms("Trilu", f32(2, 3, 4), of(1, np.int64)),
    ms("Trilu", i64(3, 3), upper=0),
    ms("Pad", f32(2, 3), of([1, 0, 0, 2], np.int64), of(3.0)),
    ms("Pad", f32(2, 3), of([0, -1, 1, 1], np.int64), of([3.0])),
    ms("Pad", f32(2, 3), of([[1, 0, 0, 2]], np.int64), mode="reflect"),
    ms("Pad", f32(2, 3), of([1, 0, 0, 2], np.int64), mode="edge"),
    no("Trilu", f32(3), match="rank"),
]


IMAGE = f32(2, 3, 5, 6)


OLD_MOVE = [
    old("Crop", IMAGE, border=[1, 0, 2, 1]),
    old("Crop", IMAGE, border=[1, 2, 0, 0], scale=[2, 3]),
    old("DynamicSlice", IMAGE, of([1, 0], np.int64), of([3, -1], np.int64), of([3, 2], np.int64)),
    old("DynamicSlice", f32(3, 4), of([0, 1], np.int32), of([-1, 1000], np.int32)),
    fails("Crop", IMAGE, border=[1], opset=7, match="has 4 numbers"),
]


CASES = [
    *SAME_MOVE,
    *OLD_MOVE,
]

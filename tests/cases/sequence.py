"""Cases of sequences and optionals; a list is a sequence."""

from __future__ import annotations

import numpy as np

from tests.op_cases import case, f32, fails, i64, of

SEQUENCE = [f32(2, 3), f32(1, 3), f32(4, 3)]


def at(position: int) -> np.ndarray:
    return of(position, np.int64)


CASES = [
    case("SequenceAt", SEQUENCE, at(1)),
    case("SequenceAt", SEQUENCE, of(-3, np.int32)),
    fails("SequenceAt", SEQUENCE, at(3), match=r"position 3 is outside \[-3, 2\] of 3"),
    fails("SequenceAt", SEQUENCE, at(-4), match=r"position -4 is outside \[-3, 2\] of 3"),
    case("SequenceConstruct", f32(2), f32(3), f32(2, 2)),
    fails("SequenceConstruct", f32(2), i64(2), match="f32|i64"),
    case("SequenceEmpty"),
    case("SequenceEmpty", dtype=7),
    fails("SequenceEmpty", dtype=16, match="bf16"),
    case("SequenceErase", SEQUENCE),
    case("SequenceErase", SEQUENCE, at(0)),
    case("SequenceErase", SEQUENCE, at(-2)),
    fails("SequenceErase", SEQUENCE, at(3), match="position 3 is outside"),
    case("SequenceInsert", SEQUENCE, f32(5, 3)),
    case("SequenceInsert", SEQUENCE, f32(5, 3), at(0)),
    case("SequenceInsert", SEQUENCE, f32(5, 3), at(-1)),
    case("SequenceInsert", SEQUENCE, f32(5, 3), at(3)),
    fails("SequenceInsert", SEQUENCE, f32(5, 3), at(4), match=r"position 4 is outside \[-3, 3\]"),
    fails("SequenceInsert", SEQUENCE, i64(3), match="f32"),
    case("SequenceLength", SEQUENCE),
    case("SplitToSequence", f32(3, 2)),
    case("SplitToSequence", f32(3, 2), keepdims=0, axis=1),
    case("SplitToSequence", f32(7), at(3)),
    case("SplitToSequence", f32(2, 7), of([3, 0, 4], np.int64), axis=-1),
    case("SplitToSequence", f32(4, 2), at(2), keepdims=0, opset=11),
    fails("SplitToSequence", f32(7), of([3, 3], np.int64), match="do not add up to 7"),
    fails("SplitToSequence", f32(7), at(0), match="parts of 0"),
    case("ConcatFromSequence", SEQUENCE, axis=0),
    case("ConcatFromSequence", [f32(2, 3), f32(2, 1)], axis=-1),
    case("ConcatFromSequence", [f32(2, 3), f32(2, 3)], axis=-1, new_axis=1),
    case("ConcatFromSequence", [f32(2, 3), f32(2, 3)], axis=1, new_axis=1),
    fails("ConcatFromSequence", SEQUENCE, axis=1, match="does not join"),
    case("Optional", f32(2), oracle="none", expect=(f32(2),), why="its value is its input"),
    case("Optional", SEQUENCE, oracle="none", expect=(SEQUENCE,), why="its value is its input"),
    case("OptionalGetElement", f32(2)),
    case("OptionalGetElement", SEQUENCE),
    case("OptionalHasElement", f32(2)),
    case("OptionalHasElement", SEQUENCE),
    case("OptionalHasElement"),
]

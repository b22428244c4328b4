"""Cases of ops of any type on strings: of all lengths, in scripts of all widths."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto as T

from tests.op_cases import Case, bools, case, f32, fails, i64, ints, of

ML = "ai.onnx.ml"
WORDS = of(
    [
        ["", "a", "seven b", "eight by"],
        ["nine byte", "é", "fünf", "Ελλάδα"],
        ["日本語のテキスト", "😀", "tab\tand\nline", "a text of more than sixteen bytes"],
    ],
    object,
)
MORE = of([["x", "Ü", "", "日本"]] * 3, object)
NONE = np.zeros((0, 4), object)


FIRST = "onnxruntime copies the first string of each row only"


def at(*values: Any) -> Any:
    return of(values, np.int64)


MOVED = [
    case("Reshape", WORDS, at(2, -1)),
    case("Flatten", WORDS),
    case("Squeeze", WORDS[:1], at(0)),
    case("Unsqueeze", WORDS, at(0, 3)),
    case("Identity", WORDS),
    case("Transpose", WORDS),
    case("Transpose", WORDS.reshape(3, 2, 2), perm=[1, 2, 0]),
    *(case("Concat", WORDS, MORE, axis=a) for a in (0, 1, -1)),
    case("Concat", WORDS, NONE, axis=0),
    case("Split", WORDS, at(1, 3), axis=1, outputs=2),
    case("Slice", WORDS, at(0, 1), at(3, 4), at(0, 1), at(1, 2)),
    case("Slice", WORDS, at(2, -1), at(-9, -9), at(0, 1), at(-1, -2)),
    case("Tile", WORDS, at(2, 3)),
    case("Expand", WORDS[:, :1], at(2, 3, 5)),
    case("Gather", WORDS, at(1), oracle="onnx", why=FIRST),
    case("Gather", WORDS, at(-1), axis=1),
    case("Gather", WORDS, at(0, 2, 2), oracle="onnx", why=FIRST),
    case("Gather", WORDS, of([[1, 0], [3, -4]], np.int32), axis=1),
    case("GatherElements", WORDS, of([[0, 1, 2, 0]], np.int64)),
    case("GatherND", WORDS, of([[0, 1], [2, 3]], np.int64)),
    case("Compress", WORDS, of([True, False, True], bool), axis=0),
    case("Compress", WORDS, of([False, True, True, False, True], bool)),
    case("Where", bools(3, 4), WORDS, MORE[:1]),
    case("Where", bools(3, 1), WORDS[0], WORDS),
    case("Equal", WORDS, WORDS[::-1].copy(), opset=19),
    case("Equal", WORDS, WORDS[1:2], opset=19),
    case("ScatterElements", WORDS, of([[1, 0, 2, 2]], np.int64), MORE[:1]),
    case("ScatterND", WORDS, of([[2], [0]], np.int64), MORE[:2]),
    fails("Gather", WORDS, at(3), match=r"3 .*outside"),
    fails("Gather", WORDS, at(4), axis=1, match=r"4 .*outside"),
    fails("GatherElements", WORDS, of([[0, 1, 3, 0]], np.int64), match=r"3 .*outside"),
]

NAMES = WORDS.reshape(-1).tolist()
ENCODED = [
    case(
        "LabelEncoder", of([["seven b", "é", "?", ""]], object), domain=ML,
        keys_strings=NAMES, values_int64s=list(range(len(NAMES))),
    ),
    case("LabelEncoder", MORE, domain=ML, keys_strings=NAMES, values_strings=NAMES[::-1]),
    case("LabelEncoder", i64(5), domain=ML, keys_int64s=[1, 2], values_strings=["eins", "zwei"]),
    case("OneHotEncoder", WORDS, domain=ML, cats_strings=NAMES[:-1]),
    case("OneHotEncoder", WORDS[:, 0], domain=ML, cats_strings=NAMES, zeros=0),
    case("OneHotEncoder", WORDS.reshape(2, 3, 2), domain=ML, cats_strings=NAMES[3:4]),
    case("OneHotEncoder", np.zeros((0,), object), domain=ML, cats_strings=["a"]),
    case("OneHotEncoder", ints(np.int32, 3, 5), domain=ML, cats_int64s=[3, -1, 0]),
    case("OneHotEncoder", of([1.7, -1.7, 0.0, 3e38, 2.0]), domain=ML, cats_int64s=[2, 1, -1, 0]),
    fails(
        "OneHotEncoder", WORDS, domain=ML, cats_strings=["a"], zeros=0,
        match="one of the 1 categories",
    ),
    case("ArrayFeatureExtractor", WORDS, at(3, 0, 0), domain=ML),
]  # fmt: skip

NUMBERS = of(
    [0.0, -0.0, 1.0, -1.5, 0.1, 1e-5, 123456.75, 1e8, 1.5e30, -2.5e-30, np.inf, -np.inf, np.nan]
)
READ = of(["0", "-1", " 42 ", "+7", "1e3", "255", "3.9", "-0.5"], object)
CAST = [
    case("Cast", NUMBERS, to=T.STRING),
    case("Cast", of([0.5, -3.0, 0.1, 65504.0, np.inf, np.nan], np.float16), to=T.STRING),
    case(
        "Cast", of([1e16, 1.2345678901234567, 0.1 + 0.2, 1e-5, 123456789.0, 5e-324]), to=T.STRING,
        oracle="none", why="onnxruntime writes eight digits of a double",
    ),
    *(
        case("Cast", of([0, 1, 100, np.iinfo(d).max, np.iinfo(d).min], d), to=T.STRING)
        for d in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
    ),
    case("Cast", of([2**63 - 1, -(2**63), 0], np.int64), to=T.STRING),
    case("Cast", of([2**64 - 1, 0], np.uint64), to=T.STRING),
    case("Cast", bools(4), to=T.STRING, oracle="none", why="no oracle writes truth as a number"),
    *(
        case("Cast", READ, to=t, oracle="none", why="onnxruntime refuses blanks and fractions")
        for t in (T.FLOAT, T.DOUBLE, T.INT64, T.INT32, T.INT8, T.UINT8, T.BOOL)
    ),
    case(
        "Cast", of(["inf", "-Infinity", "NaN", "1e999", "-1e999", "1e-999", ".5", "1."], object),
        to=T.FLOAT, oracle="none", why="onnxruntime refuses what overflows",
    ),
    *(
        fails("Cast", of([text], object), to=T.FLOAT, match="is not a number")
        for text in ("", " ", "1x", "0x10", "1_0", "--1", "é", "1e", "in")
    ),
    fails("Cast", of([str(2**64)], object), to=T.INT64, match="not an integer of 64 bits"),
    fails("Cast", of(["nan"], object), to=T.INT32, match="not an integer of 64 bits"),
]  # fmt: skip


def hashed(x: Any, **attrs: Any) -> Case:
    return case("MurmurHash3", x, domain="com.microsoft", **attrs)


HASHED = [
    *(hashed(WORDS, seed=s, positive=p) for s in (0, 42) for p in (0, 1)),
    *(hashed(i64(3, 4).astype(d)) for d in (np.int32, np.uint32, np.int64, np.uint64)),
    *(hashed(f32(5).astype(d), positive=0) for d in (np.float32, np.float64)),
    hashed(NONE),
    fails(
        "MurmurHash3",
        f32(2),
        domain="com.microsoft",
        positive=2,
        match="positive must be .*got 2",
    ),
]

UNIQUE = [
    case("Unique", MORE, outputs=4),
    case("Unique", np.concatenate([WORDS, WORDS, MORE]).reshape(-1), outputs=4),
    case("Unique", WORDS.reshape(-1), axis=0, outputs=4),
    case("Unique", np.zeros((0,), object), outputs=4),
]

CASES = [*MOVED, *ENCODED, *CAST, *HASHED, *UNIQUE]

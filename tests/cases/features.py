"""Cases of the feature preparation ops of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.op_cases import Case, case, f32, f64, fails, i64, ints, of

ML = "ai.onnx.ml"
nan, inf = np.nan, np.inf
X = of([[1.0, -2.0, 3.0], [0.0, nan, 0.0], [-4.0, -5.0, -6.0]])
NUMBERS = (f32(4, 3), f64(4, 3), i64(4, 3), ints(np.int32, 4, 3))
ONLY_FLOAT = "onnxruntime takes only float32 here"


def text(*words: str) -> Any:
    return of(words, object)


def tensor(dtype: Any, values: list[Any]) -> TensorProto:
    return helper.make_tensor(
        "", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [len(values)], values
    )


SELECT = [
    *(case("ArrayFeatureExtractor", x, of([2, 0, 2], np.int64), domain=ML) for x in NUMBERS),
    case("ArrayFeatureExtractor", f32(3), of([[2], [0]], np.int64), domain=ML),
    case("ArrayFeatureExtractor", f32(2, 3, 4), of([3], np.int64), domain=ML),
    case("ArrayFeatureExtractor", f32(0, 3), of([1], np.int64), domain=ML),
    case("ArrayFeatureExtractor", of([["a", "b"]], object), of([1], np.int64), domain=ML),
    fails(
        "ArrayFeatureExtractor",
        X,
        of([3], np.int64),
        domain=ML,
        match=r"feature 3 is outside \[0, 3\)",
    ),
    fails("ArrayFeatureExtractor", X, of([-1], np.int64), domain=ML, match="feature -1"),
    fails("ArrayFeatureExtractor", f32(), of([0], np.int64), domain=ML, match="x is a scalar"),
    case("Binarizer", of([[1.0, 0.5, -0.5, inf]]), domain=ML, threshold=0.5),
    case("Binarizer", f32(3, 2), domain=ML),
    case(
        "Binarizer",
        of([nan, 1.0]),
        domain=ML,
        expect=(of([0.0, 1.0]),),
        why="onnxruntime refuses NaN",
    ),
    *(
        case("Binarizer", of([-1, 0, 2], d), domain=ML, expect=(of([0, 0, 1], d),), why=ONLY_FLOAT)
        for d in (np.float64, np.int32, np.int64)
    ),
]

SCALE = [
    *(
        case("Scaler", x, domain=ML, offset=[1.0, 2.0, 3.0], scale=[2.0, 3.0, 0.5])
        for x in (*NUMBERS, X)
    ),
    case("Scaler", X, domain=ML, offset=[1.0], scale=[2.0]),
    case("Scaler", f32(3), domain=ML, offset=[1.0, 2.0, 3.0], scale=[2.0, 3.0, 0.5]),
    case("Scaler", f32(0, 3), domain=ML, offset=[1.0], scale=[2.0]),
    case(
        "Scaler",
        of([[1.0]]),
        domain=ML,
        scale=[2.0],
        expect=(of([[2.0]]),),
        why="onnxruntime wants both",
    ),
    fails(
        "Scaler",
        X,
        domain=ML,
        offset=[1.0, 2.0],
        scale=[1.0],
        match="offset is one number, or one per",
    ),
    *(case("Normalizer", x, domain=ML, norm=n) for n in ("MAX", "L1", "L2") for x in NUMBERS),
    *(case("Normalizer", f32(5), domain=ML, norm=n) for n in ("MAX", "L1", "L2")),
    *(
        case("Normalizer", of([[0.0, 0.0], [-1.0, -3.0], [3.0, -4.0]]), domain=ML, norm=n)
        for n in ("MAX", "L1", "L2")
    ),
    case("Normalizer", f32(0, 3), domain=ML, norm="L2"),
    fails("Normalizer", f32(2, 3, 4), domain=ML, match="rank 1 or 2"),
    fails("Normalizer", X, domain=ML, norm="L3", match="norm must be .*got L3"),
    case("Imputer", X, domain=ML, imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=0.0),
    case("Imputer", X, domain=ML, imputed_value_floats=[7.0], replaced_value_float=float("nan")),
    case("Imputer", X, domain=ML, imputed_value_floats=[7.0, 8.0, 9.0]),
    case(
        "Imputer", i64(4, 3), domain=ML, imputed_value_int64s=[70, 80, 90], replaced_value_int64=2
    ),
    case(
        "Imputer",
        of([[[0, 1]], [[5, 0]]], np.int64),
        domain=ML,
        imputed_value_int64s=[7, 8],
        expect=(of([[[7, 1]], [[5, 8]]], np.int64),),
        why="onnxruntime uses the first value for every feature where there are three dimensions",
    ),
    *(
        case(
            "Imputer",
            of([[0, 5]], d),
            domain=ML,
            **v,
            expect=(of([[9, 5]], d),),
            why="not in onnxruntime",
        )
        for d, v in (
            (np.float64, {"imputed_value_floats": [9.0]}),
            (np.int32, {"imputed_value_int64s": [9]}),
        )
    ),
    fails("Imputer", X, domain=ML, imputed_value_int64s=[1], match="needs imputed_value_floats"),
    fails(
        "Imputer",
        X,
        domain=ML,
        imputed_value_floats=[1.0, 2.0],
        match="one number, or one per feature",
    ),
    case("FeatureVectorizer", f32(3, 2), f32(3, 4), domain=ML, inputdimensions=[2, 4]),
    case("FeatureVectorizer", f32(3, 3), f32(3, 3), domain=ML, inputdimensions=[2, 4]),
    case("FeatureVectorizer", f32(3), f32(2), domain=ML, inputdimensions=[3, 2]),
    case(
        "FeatureVectorizer",
        f32(0, 2),
        f32(0, 1),
        domain=ML,
        expect=(f32(0, 3),),
        why="onnxruntime wants inputdimensions",
    ),
    fails(
        "FeatureVectorizer",
        f32(3, 2),
        domain=ML,
        inputdimensions=[-1],
        match="inputdimensions has -1",
    ),
    case("FeatureVectorizer", i64(3, 2), i64(3, 1), domain=ML, inputdimensions=[2, 1]),
    fails(
        "FeatureVectorizer",
        f32(3, 2),
        f32(2, 2),
        domain=ML,
        inputdimensions=[2, 2],
        match="rows of the inputs",
    ),
    fails(
        "FeatureVectorizer",
        f32(3, 2),
        domain=ML,
        inputdimensions=[2, 2],
        match="2 entries for 1 inputs",
    ),
]


def encode(x: Any, **attrs: Any) -> Case:
    return case("LabelEncoder", x, domain=ML, **attrs)


ENCODE = [
    encode(text("a", "q", "b"), keys_strings=["a", "b"], values_int64s=[1, 2]),
    encode(text("a", "q", "b"), keys_strings=["a", "b"], values_int64s=[1, 2], default_int64=42),
    encode(text("a", "q", "ü"), keys_strings=["a", "ü"], values_strings=["b", "ö"]),
    encode(text("a", "q"), keys_strings=["a"], values_strings=["b"], default_string="é"),
    encode(text("a", "q"), keys_strings=["a"], values_floats=[2.5]),
    encode(of([[1, 5], [3, -7]], np.int64), keys_int64s=[5, 3, -7], values_strings=["f", "t", "m"]),
    encode(of([1, 5], np.int64), keys_int64s=[5], values_floats=[0.5], default_float=7.0),
    encode(of([1, 5], np.int64), keys_int64s=[5], values_int64s=[6]),
    encode(of([1.0, nan, -0.0, inf]), keys_floats=[nan, 0.0, inf], values_strings=["n", "z", "i"]),
    encode(of([1.0, nan, -0.0]), keys_floats=[nan, 0.0], values_floats=[1.0, 2.0]),
    encode(of([], np.int64), keys_int64s=[5], values_int64s=[6]),
    encode(of(5, np.int64), keys_int64s=[5], values_int64s=[6]),
    encode(
        of([1.0, 2.0, nan], np.float64),
        keys_tensor=tensor(np.float64, [1.0, nan]),
        values_tensor=tensor(np.float64, [4.0, 5.0]),
    ),
    encode(
        of([1, 2], np.int64),
        keys_tensor=tensor(np.int64, [1, 7]),
        values_tensor=tensor(np.int64, [4, 5]),
        default_tensor=tensor(np.int64, [42]),
    ),
    case(
        "LabelEncoder",
        of([1, 2], np.int16),
        domain=ML,
        keys_tensor=tensor(np.int16, [2]),
        values_tensor=tensor(np.int32, [5]),
        expect=(of([-1, 5], np.int32),),
        why="onnxruntime has no int16",
    ),
    case(
        "LabelEncoder",
        text("a"),
        domain=ML,
        keys_strings=["a", "a"],
        values_int64s=[1, 2],
        expect=(of([2], np.int64),),
        why="the definition has the last of equal keys count, onnxruntime the first",
    ),
    *(
        case("LabelEncoder", x, domain=ML, opset=1, classes_strings=["a", "b"], **more)
        for x, more in (
            (text("b", "a", "c"), {}),
            (text("b", "a", "c"), {"default_int64": 9}),
            (of([1, 0, 2, -1], np.int64), {"default_string": "none"}),
        )
    ),
    case(
        "LabelEncoder",
        of([1, 5], np.int64),
        domain=ML,
        opset=2,
        keys_int64s=[5],
        values_floats=[0.5],
    ),
    fails(
        "LabelEncoder",
        f32(2),
        domain=ML,
        keys_int64s=[1],
        values_int64s=[1],
        match="keys of i64, and x is f32",
    ),
    fails(
        "LabelEncoder",
        f32(2),
        domain=ML,
        keys_floats=[1.0, 2.0],
        values_int64s=[1],
        match="2 keys and 1 values",
    ),
    fails(
        "LabelEncoder",
        f32(2),
        domain=ML,
        keys_floats=[1.0],
        match="exactly one list of values, got 0",
    ),
    case("CategoryMapper", text("a", "q"), domain=ML, cats_strings=["a", "b"], cats_int64s=[1, 2]),
    case(
        "CategoryMapper",
        of([[1], [9]], np.int64),
        domain=ML,
        cats_strings=["a", "b"],
        cats_int64s=[1, 2],
        default_string="?",
    ),
    case(
        "CategoryMapper",
        text("b", "q"),
        domain=ML,
        cats_strings=["a", "b", "b"],
        cats_int64s=[1, 2, 3],
        default_int64=7,
    ),
    fails(
        "CategoryMapper",
        text("a"),
        domain=ML,
        cats_strings=["a"],
        cats_int64s=[1, 2],
        match="2 integers for 1",
    ),
    case("OneHotEncoder", of([[1, 3], [4, 1]], np.int64), domain=ML, cats_int64s=[1, 3, -2]),
    case("OneHotEncoder", of([1.9, -2.9, 3.0, nan]), domain=ML, cats_int64s=[1, 3, -2]),
    case("OneHotEncoder", of([1.9, 3.0], np.float64), domain=ML, cats_int64s=[1, 3]),
    case(
        "OneHotEncoder",
        of([1, 3], np.int32),
        domain=ML,
        cats_int64s=[3, 1],
        expect=(of([[0.0, 1.0], [1.0, 0.0]]),),
        why="onnxruntime has no int32",
    ),
    case("OneHotEncoder", text("a", "q"), domain=ML, cats_strings=["a", "b"]),
    case("OneHotEncoder", of(1, np.int64), domain=ML, cats_int64s=[1, 3]),
    case("OneHotEncoder", of([], np.int64), domain=ML, cats_int64s=[1, 3]),
    case("OneHotEncoder", of([1, 3], np.int64), domain=ML, cats_int64s=[1, 3], zeros=0),
    fails(
        "OneHotEncoder",
        of([4], np.int64),
        domain=ML,
        cats_int64s=[1, 3],
        zeros=0,
        match="4.*one of the 2",
    ),
    fails("OneHotEncoder", of([4], np.int64), domain=ML, match="0 integers and 0 strings"),
    fails(
        "OneHotEncoder", of([4], np.int64), domain=ML, cats_strings=["a"], match="categories of str"
    ),
]

MAPS = [
    case("ZipMap", f32(2, 3), domain=ML, classlabels_int64s=[1, 2, 3]),
    case("ZipMap", f32(2, 3), domain=ML, classlabels_strings=["a", "b", "ü"]),
    case("ZipMap", f32(3), domain=ML, classlabels_strings=["a", "b", "c"]),
    case("ZipMap", f32(0, 2), domain=ML, classlabels_strings=["a", "b"]),
    fails(
        "ZipMap",
        f32(2, 3),
        domain=ML,
        classlabels_int64s=[1],
        match="columns and keys of ZipMap differ: 3 and 1",
    ),
    fails("ZipMap", f32(2, 3), domain=ML, match="0 integers and 0 strings"),
    case("DictVectorizer", {"a": 1.5, "c": 2.0}, domain=ML, string_vocabulary=["a", "b", "c"]),
    case("DictVectorizer", {"z": 1.5}, domain=ML, string_vocabulary=["a", "b"]),
    case("DictVectorizer", {3: 1.5}, domain=ML, int64_vocabulary=[1, 3, 3]),
    fails(
        "DictVectorizer", {3: 1.5}, domain=ML, string_vocabulary=["a"], match="keys of x are i64"
    ),
    case("CastMap", {7: 2.5, 0: 3.5}, domain=ML),
    case("CastMap", {1: 2.5, 7: -3.5}, domain=ML, cast_to="TO_INT64"),
    case("CastMap", {1: 2.5, 7: 1e10, 9: 1 / 3}, domain=ML, cast_to="TO_STRING"),
    case("CastMap", {1: 2.5, 3: 3.5}, domain=ML, map_form="SPARSE", max_map=5),
    case("CastMap", {1: 2.5, 3: 3.5}, domain=ML, map_form="SPARSE", max_map=3, cast_to="TO_STRING"),
    fails("CastMap", {-1: 2.5}, domain=ML, map_form="SPARSE", max_map=3, match="the key -1"),
    fails("CastMap", {1: 2.5}, domain=ML, map_form="SPARSE", max_map=-3, match="max_map is -3"),
    fails("CastMap", {"a": 2.5}, domain=ML, match="needs keys of i64, got str"),
]

CASES = [*SELECT, *SCALE, *ENCODE, *MAPS]

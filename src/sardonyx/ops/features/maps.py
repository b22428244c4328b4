"""ZipMap, DictVectorizer and CastMap of ai.onnx.ml: tensors to maps and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, RuntimeException, ShapeError
from sardonyx.graph.dtype import F32, I64, STRING, DType
from sardonyx.graph.fact import AnyFact, Fact, MapFact, SequenceFact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import array
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import (
    CLASS_INT64S,
    SCORES,
    batch_sizes,
    label_type,
    labels_of,
    ml_op,
)

MAX_COLUMNS: Final = 2**27  # of a tensor from a map; more means an invalid model

zip_map = ml_op("ZipMap", 1, "x:T", "z", attrs=CLASS_INT64S, types={"T": SCORES})


@zip_map.infer
def _(g: Scope, x: Fact, *, classlabels_int64s: Any, classlabels_strings: Any) -> AnyFact:
    kind, count = label_type(classlabels_int64s, classlabels_strings, "ZipMap")
    _, width = batch_sizes(g, x, "ZipMap")
    if x.shape is not None:
        g.equal(width, count, "columns and keys of ZipMap differ")
    return SequenceFact(MapFact(kind, Fact(F32, ())))


@zip_map.reference
def _(x: Array, *, classlabels_int64s: Any, classlabels_strings: Any) -> list[dict[Any, float]]:
    keys = labels_of(classlabels_int64s, classlabels_strings).tolist()
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if rows.shape[1] != len(keys):
        raise InvalidArgument(f"ZipMap has {len(keys)} keys for rows of {rows.shape[1]} numbers")
    return [dict(zip(keys, row, strict=True)) for row in rows.tolist()]


dict_vectorizer = ml_op(
    "DictVectorizer",
    1,
    "x",
    "y",
    attrs={"int64_vocabulary": array("ints"), "string_vocabulary": array("strings")},
    unranked=False,
)


def _map_fact(x: AnyFact, what: str) -> tuple[DType, DType]:
    """Return the types of a map's keys and values."""
    if not isinstance(x, MapFact) or not isinstance(x.value, Fact):
        raise ShapeError(f"{what} needs a map to numbers or strings, got {x}")
    return x.key, x.value.dtype


@dict_vectorizer.infer
def _(g: Scope, x: AnyFact, *, int64_vocabulary: Any, string_vocabulary: Any) -> Fact:
    key, value = _map_fact(x, "DictVectorizer")
    kind, count = label_type(int64_vocabulary, string_vocabulary, "DictVectorizer")
    if key is not kind:
        raise ShapeError(f"DictVectorizer has a vocabulary of {kind}, and the keys of x are {key}")
    return Fact(value, (1, count))


@dict_vectorizer.reference
def _(x: Mapping[Any, Any], *, int64_vocabulary: Any, string_vocabulary: Any) -> Array:
    words = labels_of(int64_vocabulary, string_vocabulary).tolist()
    dtype = _value_type(x.values())
    empty: Any = "" if np.dtype(dtype).kind == "O" else 0
    return _tensor([_plain(x.get(w, empty)) for w in words], dtype)


def _value_type(values: Iterable[Any]) -> Any:
    """Return the element type of a map's values; float32 for an empty map."""
    first = next(iter(values), 0.0)
    if isinstance(first, (np.generic, np.ndarray)):
        return first.dtype
    if isinstance(first, str):
        return object
    return np.int64 if isinstance(first, int) else np.float32


def _plain(value: Any) -> Any:
    return value.reshape(-1)[0] if isinstance(value, np.ndarray) else value


def _tensor(values: list[Any], dtype: Any) -> Array:
    result = np.empty((1, len(values)), dtype)
    result[0, :] = values
    return result


cast_map = ml_op(
    "CastMap",
    1,
    "x",
    "y",
    attrs={"cast_to": b"TO_FLOAT", "map_form": b"DENSE", "max_map": 1},
    unranked=False,
)
_CASTS: Final = {b"TO_FLOAT": F32, b"TO_STRING": STRING, b"TO_INT64": I64}


@cast_map.infer
def _(g: Scope, x: AnyFact, *, cast_to: bytes, map_form: bytes, max_map: int) -> Fact:
    key, _ = _map_fact(x, "CastMap")
    if key is not I64:
        raise ShapeError(f"CastMap needs keys of i64, got {key}")
    if cast_to not in _CASTS or map_form not in (b"DENSE", b"SPARSE"):
        raise InvalidGraph(
            f"CastMap has cast_to {cast_to!r} and map_form {map_form!r}, and supports "
            "TO_FLOAT, TO_STRING and TO_INT64, DENSE and SPARSE"
        )
    if map_form == b"SPARSE" and not 0 < max_map <= MAX_COLUMNS:
        raise InvalidGraph(f"max_map is {max_map}, which is outside [1, {MAX_COLUMNS}]")
    return Fact(_CASTS[cast_to], (1, g.new_dim("entries") if map_form == b"DENSE" else max_map))


@cast_map.reference
def _(x: Mapping[int, Any], *, cast_to: bytes, map_form: bytes, max_map: int) -> Array:
    dtype = _CASTS[cast_to]
    if map_form == b"DENSE":
        return _tensor([_cast(x[k], dtype) for k in sorted(x)], dtype.np)
    if x and min(x) < 0:
        raise InvalidArgument(f"the key {min(x)} of a sparse map is negative")
    result = np.full((1, max_map), "0.f" if dtype is STRING else 0, dtype.np)
    for key, value in x.items():
        if key < max_map:
            result[0, key] = _cast(value, dtype)
    return result


def _cast(value: Any, dtype: DType) -> Any:
    value = _plain(value)
    try:
        if dtype is STRING:
            return value if isinstance(value, str) else f"{np.float32(value):.6f}"
        return float(value) if dtype is F32 else int(float(value))
    except (ValueError, OverflowError) as error:
        raise RuntimeException(f"{value!r} of a map cannot be cast to {dtype}") from error


OPS: Final = (zip_map, dict_vectorizer, cast_map)

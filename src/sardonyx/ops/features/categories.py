"""LabelEncoder, CategoryMapper and OneHotEncoder of ai.onnx.ml."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, RuntimeException, ShapeError
from sardonyx.graph.dtype import F32, F64, I16, I32, I64, STRING, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import ML, Op, array, optional
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import FEATURES, LABELS, SCORES, label_type, string_array
from sardonyx.ops.lookup_table import LookupTable
from sardonyx.ops.memoize import Memoized

ENCODED: Final = frozenset((STRING, I64, F32, I32, I16, F64))


encoder = Op(
    "LabelEncoder",
    4,
    "x:T",
    "y:U",
    domain=ML,
    attrs={
        "default_float": -0.0,
        "default_int64": -1,
        "default_string": b"_Unused",
        "default_tensor": optional("tensor"),
        "keys_floats": array("floats"),
        "keys_int64s": array("ints"),
        "keys_strings": array("strings"),
        "keys_tensor": optional("tensor"),
        "values_floats": array("floats"),
        "values_int64s": array("ints"),
        "values_strings": array("strings"),
        "values_tensor": optional("tensor"),
    },
    types={"T": ENCODED, "U": ENCODED},
    unranked=True,
)
_KINDS: Final = (("floats", F32), ("int64s", I64), ("strings", STRING))


def _keys_or_values(attrs: dict[str, Any], side: str) -> tuple[Any, DType]:
    """Return the keys or values of an encoder, and their type."""
    lists = [(attrs[f"{side}_{n}"], d) for n, d in _KINDS if attrs[f"{side}_{n}"] is not None]
    if attrs[f"{side}_tensor"] is not None:
        lists.append((attrs[f"{side}_tensor"], attrs[f"{side}_tensor"].dtype))
    if len(lists) != 1:
        raise InvalidGraph(f"LabelEncoder needs exactly one list of {side}, and has {len(lists)}")
    return lists[0]


def _as_array(values: Any) -> Array:
    """Return an attribute (numbers, strings or a tensor) as an array."""
    if isinstance(values, list):
        return string_array(values)
    return values if isinstance(values, np.ndarray) else values.read().reshape(-1)


def _count(values: Any) -> int:
    return len(values) if isinstance(values, (list, np.ndarray)) else int(values.count)


def _encoder_table(keys: Any, values: Any, default: Any) -> LookupTable:
    fallback = (
        default if isinstance(default, (int, float, bytes)) else default.read().reshape(-1)[0]
    )
    if isinstance(fallback, bytes):
        fallback = fallback.decode("utf-8", "replace")
    return LookupTable(_as_array(keys), _as_array(values), fallback)


_ENCODERS: Final = Memoized(_encoder_table)


def _default(attrs: dict[str, Any], dtype: DType) -> Any:
    if attrs["default_tensor"] is not None:
        return attrs["default_tensor"]
    if dtype is STRING:
        return attrs["default_string"]
    return attrs["default_float"] if dtype.is_float else attrs["default_int64"]


@encoder.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    (keys, key_type), (values, value_type) = (
        _keys_or_values(attrs, "keys"),
        _keys_or_values(attrs, "values"),
    )
    if x.dtype is not key_type:
        raise ShapeError(f"LabelEncoder has keys of {key_type}, and x is {x.dtype}")
    if _count(keys) != _count(values):
        raise InvalidGraph(f"LabelEncoder has {_count(keys)} keys and {_count(values)} values")
    default = attrs["default_tensor"]
    if default is not None and (default.count != 1 or default.dtype is not value_type):
        raise InvalidGraph(
            f"default_tensor is {default.count} of {default.dtype}, and must be 1 of {value_type}"
        )
    if default is None and value_type.is_integer:
        _check_fits(attrs["default_int64"], value_type)
    return Fact(value_type, x.shape)


def _check_fits(number: int, dtype: DType) -> None:
    limits = np.iinfo(dtype.np)
    if not limits.min <= number <= limits.max:
        raise InvalidGraph(f"default_int64 is {number}, which {dtype} cannot hold")


def encoder_table(attrs: dict[str, Any]) -> LookupTable:
    """Return the (memoized) lookup table of a LabelEncoder."""
    keys, values = _keys_or_values(attrs, "keys")[0], _keys_or_values(attrs, "values")
    return _ENCODERS(keys, values[0], _default(attrs, values[1]))


@encoder.reference
def _(x: Array, **attrs: Any) -> Array:
    return encoder_table(attrs)(x)


mapper = Op(
    "CategoryMapper",
    1,
    "x:T",
    "y:U",
    domain=ML,
    attrs={
        "cats_int64s": array("ints"),
        "cats_strings": array("strings"),
        "default_int64": -1,
        "default_string": b"_Unused",
    },
    types={"T": LABELS, "U": LABELS},
    unranked=True,
)


@mapper.infer
def _(g: Scope, x: Fact, *, cats_int64s: Any, cats_strings: Any, **_: Any) -> Fact:
    ints, strings = len(_or_empty(cats_int64s)), len(_or_empty(cats_strings))
    if ints != strings:
        raise InvalidGraph(f"CategoryMapper has {ints} integers for {strings} strings")
    return Fact(I64 if x.dtype is STRING else STRING, x.shape)


def _or_empty(values: Any) -> Any:
    return () if values is None else values


def mapper_table(
    from_strings: bool,
    *,
    cats_int64s: Any,
    cats_strings: Any,
    default_int64: int,
    default_string: bytes,
) -> LookupTable:
    """Return the (memoized) lookup table of a CategoryMapper in one direction."""
    ints = np.zeros(0, np.int64) if cats_int64s is None else cats_int64s
    strings = cats_strings if cats_strings is not None else []
    if from_strings:
        return _ENCODERS(strings, ints, default_int64)
    return _ENCODERS(ints, strings, default_string)


@mapper.reference
def _(x: Array, **attrs: Any) -> Array:
    return mapper_table(x.dtype == object, **attrs)(x)


one_hot = Op(
    "OneHotEncoder",
    1,
    "x:T",
    "y:S",
    domain=ML,
    attrs={"cats_int64s": array("ints"), "cats_strings": array("strings"), "zeros": 1},
    types={"T": FEATURES | {STRING}, "S": SCORES},
    unranked=True,
)


def _positions(keys: Any) -> LookupTable:
    lists = _as_array(keys)
    return LookupTable(lists, np.arange(len(lists)), len(lists))


position_table: Final = Memoized(_positions)  # the number of each category


@one_hot.infer
def _(g: Scope, x: Fact, *, cats_int64s: Any, cats_strings: Any, zeros: int) -> Fact:
    kind = label_type(cats_int64s, cats_strings, "OneHotEncoder")
    if (kind is STRING) != (x.dtype is STRING):
        raise ShapeError(f"OneHotEncoder has categories of {kind}, and x is {x.dtype}")
    count = len(cats_strings if kind is STRING else cats_int64s)
    return Fact(F32, None if x.shape is None else (*x.dims, count))


@one_hot.reference
def _(x: Array, *, cats_int64s: Any, cats_strings: Any, zeros: int) -> Array:
    table = position_table(cats_strings if x.dtype == object else cats_int64s)
    count = len(table.values) - 1
    at = table.find(np.trunc(x) if x.dtype.kind == "f" else x)
    if not zeros and np.any(at == count):
        odd = x[at == count].reshape(-1)[0]
        raise RuntimeException(f"{odd!r} is none of the {count} categories, and zeros is 0")
    return np.asarray(at[..., None] == np.arange(count), np.float32)


OPS: Final = (encoder, mapper, one_hot)

"""LabelEncoder, CategoryMapper and OneHotEncoder of ai.onnx.ml."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, RuntimeException, ShapeError
from sardonyx.graph.dtype import F32, F64, I16, I32, I64, STRING, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import array, optional
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import FEATURES, LABELS, SCORES, label_type, ml_op, string_array
from sardonyx.ops.lookup_table import LookupTable
from sardonyx.ops.memoize import Memoized

ENCODED: Final = frozenset((STRING, I64, F32, I32, I16, F64))


encoder = ml_op(
    "LabelEncoder",
    4,
    "x:T",
    "y:U",
    attrs={
        "default_float": -0.0,
        "default_int64": -1,
        "default_string": b"_Unused",
        **dict.fromkeys(("keys_floats", "values_floats"), array("floats")),
        **dict.fromkeys(("keys_int64s", "values_int64s"), array("ints")),
        **dict.fromkeys(("keys_strings", "values_strings"), array("strings")),
        **dict.fromkeys(("default_tensor", "keys_tensor", "values_tensor"), optional("tensor")),
    },
    types={"T": ENCODED, "U": ENCODED},
)
_KINDS: Final = (("floats", F32), ("int64s", I64), ("strings", STRING))


def _keys_or_values(attrs: dict[str, Any], side: str) -> tuple[Any, DType]:
    """Return the keys or values of an encoder, and their type."""
    lists = [(attrs[f"{side}_{n}"], d) for n, d in _KINDS if attrs[f"{side}_{n}"] is not None]
    if attrs[f"{side}_tensor"] is not None:
        lists.append((attrs[f"{side}_tensor"], attrs[f"{side}_tensor"].dtype))
    if len(lists) != 1:
        raise InvalidGraph(f"LabelEncoder needs exactly one list of {side}, got {len(lists)}")
    return lists[0]


def _as_array(values: Any) -> Array:
    """Return an attribute (numbers, strings or a tensor) as an array."""
    if isinstance(values, list):
        return string_array(values)
    return values if isinstance(values, np.ndarray) else values.read().reshape(-1)


def _count(values: Any) -> int:
    return len(values) if isinstance(values, (list, np.ndarray)) else int(values.count)


@Memoized
def _lookup_table(keys: Any, values: Any, default: Any) -> LookupTable:
    if isinstance(default, bytes):
        default = default.decode("utf-8", "replace")
    elif not isinstance(default, (int, float)):
        default = default.read().reshape(-1)[0]
    return LookupTable(_as_array(keys), _as_array(values), default)


def _default(attrs: dict[str, Any], dtype: DType) -> Any:
    if attrs["default_tensor"] is not None:
        return attrs["default_tensor"]
    if dtype is STRING:
        return attrs["default_string"]
    return attrs["default_float"] if dtype.is_float else attrs["default_int64"]


@encoder.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    keys, key_type = _keys_or_values(attrs, "keys")
    values, value_type = _keys_or_values(attrs, "values")
    if x.dtype is not key_type:
        raise ShapeError(f"LabelEncoder has keys of {key_type}, and x is {x.dtype}")
    if _count(keys) != _count(values):
        raise InvalidGraph(f"LabelEncoder has {_count(keys)} keys and {_count(values)} values")
    default = attrs["default_tensor"]
    if default is not None and (default.count != 1 or default.dtype is not value_type):
        raise InvalidGraph(
            f"default_tensor must have one element of {value_type}, got {default.count} of "
            f"{default.dtype}"
        )
    if default is None and value_type.is_integer:
        number, limits = attrs["default_int64"], np.iinfo(value_type.np)
        if not limits.min <= number <= limits.max:
            raise InvalidGraph(f"default_int64 is {number}, which {value_type} cannot hold")
    return Fact(value_type, x.shape)


def encoder_table(attrs: dict[str, Any]) -> LookupTable:
    """Return the (memoized) lookup table of a LabelEncoder."""
    keys, values = _keys_or_values(attrs, "keys")[0], _keys_or_values(attrs, "values")
    return _lookup_table(keys, values[0], _default(attrs, values[1]))


@encoder.reference
def _(x: Array, **attrs: Any) -> Array:
    return encoder_table(attrs)(x)


_CATEGORIES: Final = {"cats_int64s": array("ints"), "cats_strings": array("strings")}
mapper = ml_op(
    "CategoryMapper",
    1,
    "x:T",
    "y:U",
    attrs={**_CATEGORIES, "default_int64": -1, "default_string": b"_Unused"},
    types={"T": LABELS, "U": LABELS},
)


@mapper.infer
def _(g: Scope, x: Fact, *, cats_int64s: Any, cats_strings: Any, **_: Any) -> Fact:
    ints, strings = (0 if cats is None else len(cats) for cats in (cats_int64s, cats_strings))
    if ints != strings:
        raise InvalidGraph(f"CategoryMapper has {ints} integers for {strings} strings")
    return Fact(I64 if x.dtype is STRING else STRING, x.shape)


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
        return _lookup_table(strings, ints, default_int64)
    return _lookup_table(ints, strings, default_string)


@mapper.reference
def _(x: Array, **attrs: Any) -> Array:
    return mapper_table(x.dtype == object, **attrs)(x)


one_hot = ml_op(
    "OneHotEncoder",
    1,
    "x:T",
    "y:S",
    attrs={**_CATEGORIES, "zeros": 1},
    types={"T": FEATURES | {STRING}, "S": SCORES},
)


@Memoized
def position_table(categories: Any) -> LookupTable:
    """Return the (memoized) table from each category to its position in the list."""
    keys = _as_array(categories)
    return LookupTable(keys, np.arange(len(keys)), len(keys))


@one_hot.infer
def _(g: Scope, x: Fact, *, cats_int64s: Any, cats_strings: Any, zeros: int) -> Fact:
    kind, count = label_type(cats_int64s, cats_strings, "OneHotEncoder")
    if (kind is STRING) != (x.dtype is STRING):
        raise ShapeError(f"OneHotEncoder has categories of {kind}, and x is {x.dtype}")
    return Fact(F32, None if x.shape is None else (*x.dims, count))


@one_hot.reference
def _(x: Array, *, cats_int64s: Any, cats_strings: Any, zeros: int) -> Array:
    table = position_table(cats_strings if x.dtype == object else cats_int64s)
    count = len(table.values) - 1
    # Categories are integers: floats are compared after truncation.
    at = table.find(np.trunc(x) if x.dtype.kind == "f" else x)
    if not zeros and np.any(at == count):
        odd = x[at == count].reshape(-1)[0]
        raise RuntimeException(
            f"{odd!r} is not one of the {count} categories "
            "(attribute zeros = 0 makes this an error)"
        )
    return np.asarray(at[..., None] == np.arange(count), np.float32)


OPS: Final = (encoder, mapper, one_hot)

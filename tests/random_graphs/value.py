"""Values of a random graph: what they hold, and how the numbers of an input are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TypeProto, helper

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
    "string": object,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}
NAMES = {np.dtype(t): n for n, t in DTYPES.items()}
FLOATS = ("float", "float16", "double", "bfloat16")
INTS = ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
# Types that numpy lends onnxruntime no buffer for: they are constants, or come out of a Cast.
FOREIGN = frozenset(n for n in DTYPES if n.startswith("float8")) | {"bfloat16", "int4", "uint4"}
WORDS = ("", "a", "b", "ab", "Hello", "the", "1", "2.5", "-3", "x y z", "é", "a-b-c", "ABC", "日本")
SPECIALS = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-7, 1e-42, -1e-40, 1e15, -1e15, 60000.0)


def name_of(array: Array) -> str:
    """The type of an array as ONNX Runtime calls it; empty for types that graphs do not use."""
    return "string" if array.dtype.kind in "OUS" else NAMES.get(array.dtype, "")


def is_float(dtype: str) -> bool:
    return dtype in FLOATS or dtype.startswith("float8")


@dataclass(frozen=True)
class Recipe:
    """How an input's numbers are drawn, again for every size: uniform ints, normal floats."""

    dtype: str
    low: float | None = None
    high: float | None = None  # inclusive
    specials: bool = False
    fixed: Any = None  # given values, for one shape only

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        """Numbers for a shape."""
        return self.fixed if self.fixed is not None else np.asarray(self._drawn(rng, shape))

    def _drawn(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        if self.dtype == "string":
            return np.array(WORDS, object)[rng.integers(0, len(WORDS), shape)]
        if self.dtype == "bool":
            return rng.random(shape) < 0.5
        dtype = np.dtype(DTYPES[self.dtype])
        if is_float(self.dtype):
            with np.errstate(over="ignore"):
                return self._floats(rng, shape).astype(dtype)
        low, high = _int_range(self.dtype) if self.low is None else (self.low, self.high)
        return np.asarray(rng.integers(int(low), int(high), shape, endpoint=True)).astype(dtype)

    def _floats(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        if self.low is not None:
            return np.asarray(rng.uniform(self.low, self.high, shape))
        numbers = np.asarray(rng.normal(0, 1, shape))
        if rng.random() < 0.2:  # numbers that rounding meets halfway, and that are equal
            numbers = np.round(numbers * 4) / 4
        if self.specials:
            special = rng.choice(np.array(SPECIALS[: 6 if self.dtype != "float" else None]), shape)
            numbers = np.where(rng.random(shape) < 0.1, special, numbers)
        return numbers


def _int_range(dtype: str) -> tuple[int, int]:
    if dtype == "int4":
        return -8, 7
    if dtype == "uint4":
        return 0, 15
    info = np.iinfo(DTYPES[dtype])
    return (max(int(info.min), -9), 9) if info.min else (0, min(int(info.max), 18))


@dataclass(eq=False)
class Value:
    """A value of the graph under construction, with what it holds for the first sizes."""

    name: str
    data: Any  # an array, a list, a dict, or None for an optional that is empty
    type: TypeProto
    is_const: bool = False
    depth: int = 0  # nodes between it and the inputs
    uses: int = 0
    is_random: bool = False  # drawn by the graph itself: only its type and shape are compared
    recipe: Recipe | None = None  # of graph inputs

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.data, np.ndarray) and self.type.HasField("tensor_type")

    @property
    def dtype(self) -> str:
        return name_of(self.data) if self.is_tensor else ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def rank(self) -> int:
        return int(self.data.ndim)


def type_of(data: Any, shape: Any = "same") -> TypeProto:
    """The type of a value as a model declares it; `shape` None leaves even the rank open."""
    if isinstance(data, list):
        elem = type_of(data[0], None) if data else helper.make_tensor_type_proto(1, None)
        return helper.make_sequence_type_proto(elem)
    if isinstance(data, dict):
        key, item = next(iter(data.items()), (0, 0.0))
        plain = np.float32(item) if isinstance(item, float) else item
        key_type = 8 if isinstance(key, str) else 7
        return helper.make_map_type_proto(key_type, type_of(np.asarray(plain)))
    array = np.asarray(data)
    number = 8 if array.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_type_proto(number, list(array.shape) if shape == "same" else shape)

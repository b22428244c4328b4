"""Element types: one object per ONNX type, with its short name, ONNX number and numpy type."""

from __future__ import annotations

from typing import Any, Final

import numpy as np


class DType:
    """An element type. There is one object per type, so `is` compares them."""

    __slots__ = ("_np", "bits", "itemsize", "kind", "name", "np_name", "onnx", "ort_name")

    def __init__(
        self, name: str, onnx: int, kind: str, bits: int, ort_name: str, np_name: str
    ) -> None:
        self.name: Final = name
        self.onnx: Final = onnx
        self.kind: Final = kind  # float, int, uint, bool, complex, string
        self.bits: Final = bits  # in a file; in memory, types under 8 bits use one byte per element
        self.itemsize: Final = max(1, bits // 8)  # bytes of one element in memory
        self.ort_name: Final = ort_name
        self.np_name: Final = np_name
        self._np: np.dtype[Any] | None = None

    @property
    def np(self) -> np.dtype[Any]:
        """The numpy type of arrays of this element type (from ml_dtypes where numpy has none)."""
        if self._np is None:
            module: Any = np
            if not hasattr(np, self.np_name):
                import ml_dtypes as module  # costs milliseconds, and most models do not need it
            self._np = np.dtype(getattr(module, self.np_name))
        return self._np

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    def packed_bytes(self, count: int) -> int:
        """Return the bytes of `count` elements as ONNX stores them."""
        return (count * self.bits + 7) // 8

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name, (self.name,)


# Short name, ONNX number, kind, bits, name inside "tensor(...)", name in numpy or ml_dtypes.
_TYPES: Final = (
    ("f32", 1, "float", 32, "float", "float32"),
    ("u8", 2, "uint", 8, "uint8", "uint8"),
    ("i8", 3, "int", 8, "int8", "int8"),
    ("u16", 4, "uint", 16, "uint16", "uint16"),
    ("i16", 5, "int", 16, "int16", "int16"),
    ("i32", 6, "int", 32, "int32", "int32"),
    ("i64", 7, "int", 64, "int64", "int64"),
    ("str", 8, "string", 128, "string", "object_"),
    ("bool", 9, "bool", 8, "bool", "bool_"),
    ("f16", 10, "float", 16, "float16", "float16"),
    ("f64", 11, "float", 64, "double", "float64"),
    ("u32", 12, "uint", 32, "uint32", "uint32"),
    ("u64", 13, "uint", 64, "uint64", "uint64"),
    ("c64", 14, "complex", 64, "complex64", "complex64"),
    ("c128", 15, "complex", 128, "complex128", "complex128"),
    ("bf16", 16, "float", 16, "bfloat16", "bfloat16"),
    ("f8e4m3fn", 17, "float", 8, "float8e4m3fn", "float8_e4m3fn"),
    ("f8e4m3fnuz", 18, "float", 8, "float8e4m3fnuz", "float8_e4m3fnuz"),
    ("f8e5m2", 19, "float", 8, "float8e5m2", "float8_e5m2"),
    ("f8e5m2fnuz", 20, "float", 8, "float8e5m2fnuz", "float8_e5m2fnuz"),
    ("u4", 21, "uint", 4, "uint4", "uint4"),
    ("i4", 22, "int", 4, "int4", "int4"),
    ("f4e2m1", 23, "float", 4, "float4e2m1", "float4_e2m1fn"),
    ("f8e8m0", 24, "float", 8, "float8e8m0", "float8_e8m0fnu"),
    ("u2", 25, "uint", 2, "uint2", "uint2"),
    ("i2", 26, "int", 2, "int2", "int2"),
    ("f6e2m3", 27, "float", 6, "float6e2m3", "float6_e2m3fn"),
    ("f6e3m2", 28, "float", 6, "float6e3m2", "float6_e3m2fn"),
)

_BY_ONNX: Final = {row[1]: DType(*row) for row in _TYPES}
_BY_NAME: Final = {d.name: d for d in _BY_ONNX.values()}
_BY_ORT_NAME: Final = {d.ort_name: d for d in _BY_ONNX.values()}
# Types of ml_dtypes are added when an array first has one.
_BY_NUMPY: Final = {d.np: d for d in _BY_ONNX.values() if hasattr(np, d.np_name)}

F16, F32, F64, BF16 = (_BY_NAME[name] for name in ("f16", "f32", "f64", "bf16"))
I8, I16, I32, I64 = (_BY_NAME[name] for name in ("i8", "i16", "i32", "i64"))
U8, U16, U32, U64 = (_BY_NAME[name] for name in ("u8", "u16", "u32", "u64"))
BOOL, STRING, C64, C128 = (_BY_NAME[name] for name in ("bool", "str", "c64", "c128"))

# Type constraints of op declarations.
IEEE: Final = frozenset((F16, F32, F64))
FLOATS: Final = frozenset((F16, F32, F64, BF16))
SIGNED: Final = frozenset((I8, I16, I32, I64))
UNSIGNED: Final = frozenset((U8, U16, U32, U64))
INTS: Final = SIGNED | UNSIGNED
INDEX: Final = frozenset((I32, I64))
NUMBERS: Final = FLOATS | INTS
FLOAT8: Final = frozenset(_BY_NAME[n] for n in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"))
COMPLEX: Final = frozenset((C64, C128))
ALL: Final = frozenset(_BY_ONNX.values())


def by_onnx(number: int) -> DType | None:
    """Return the type with a TensorProto.DataType number."""
    return _BY_ONNX.get(number)


def by_name(name: str) -> DType:
    """Return the type with a short name ("f32")."""
    return _BY_NAME[name]


def by_ort_name(name: str) -> DType | None:
    """Return the type with a name of onnxruntime, as inside "tensor(...)"."""
    return _BY_ORT_NAME.get(name)


def by_numpy(dtype: np.dtype[Any]) -> DType | None:
    """Return the ONNX type of an array type; None if ONNX has none."""
    found = _BY_NUMPY.get(dtype)
    if found is None and dtype.kind in "US":
        return STRING
    if found is None and dtype.type.__module__.startswith("ml_dtypes"):
        _BY_NUMPY.update((d.np, d) for d in _BY_ONNX.values())
        found = _BY_NUMPY.get(dtype)
    return found

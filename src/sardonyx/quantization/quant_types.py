"""Quantization types, formats and modes, and the ranges of the integer types."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Self

import numpy as np

from sardonyx.graph.dtype import DType, by_name, by_onnx

FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, FLOAT16 = 1, 2, 3, 4, 5, 6, 7, 10
FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ, UINT4, INT4 = 17, 18, 19, 20, 21, 22
FLOAT8: Final = (FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ)
FLOATS: Final = (FLOAT, FLOAT16)  # element types that can be quantized
SINCE_21: Final = (UINT16, INT16, UINT4, INT4)  # that QuantizeLinear has since opset 21


class _Named(Enum):
    """An enumeration whose members are shown by their names."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls, name: str) -> Self:
        """Return the member with a name; ValueError for other names."""
        if name not in cls.__members__:
            raise ValueError(
                f"{cls.__name__} must be one of {', '.join(cls.__members__)}, got {name!r}"
            )
        return cls[name]


class QuantizationMode(_Named):
    """What a model in operator format computes with."""

    IntegerOps = 0  # activations are quantized while the model runs
    QLinearOps = 1  # activations have scales from calibration


class QuantizedValueType(_Named):
    """Where a quantized value comes from."""

    Input = 0
    Initializer = 1


class QuantFormat(_Named):
    """How quantization is expressed in a model."""

    QOperator = 0  # ops on integers, such as QLinearConv
    QDQ = 1  # ops on floats between DequantizeLinear and QuantizeLinear


class QuantType(_Named):
    """The type that activations or weights are quantized to."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6

    @property
    def tensor_type(self) -> int:
        """The number of the type in TensorProto.DataType."""
        return _NUMBERS[self.value]


_NUMBERS: Final = (INT8, UINT8, FLOAT8E4M3FN, INT16, UINT16, INT4, UINT4)


def type_number(quant_type: QuantType | int) -> int:
    """Return a number of TensorProto.DataType from that or from a QuantType."""
    return quant_type.tensor_type if isinstance(quant_type, QuantType) else int(quant_type)


def dtype_of(number: int) -> DType:
    """Return the element type with a number of TensorProto.DataType."""
    found = by_onnx(number)
    if found is None:
        raise ValueError(f"{number} is not a number of TensorProto.DataType")
    return found


def float_name(number: int) -> str:
    """Return the name of a number of TensorProto.DataType for messages."""
    found = by_onnx(number)
    return str(number) if found is None else found.name


# By type: the whole range, that of symmetric weights, and that of reduced precision.
_WHOLE: Final = {
    UINT8: (0, 255), INT8: (-128, 127), UINT16: (0, 65535), INT16: (-32768, 32767), UINT4: (0, 15),
    INT4: (-8, 7),
}  # fmt: skip
_SYMMETRIC: Final = {INT8: (-127, 127), INT16: (-32767, 32767)}
_REDUCED: Final = {
    UINT8: (0, 127), INT8: (-64, 64), UINT16: (0, 32767), INT16: (-16384, 16384), UINT4: (0, 7),
    INT4: (-4, 3),
}  # fmt: skip
SIGNED: Final = (INT4, INT8, INT16, FLOAT8E4M3FN)  # symmetric by default, as weights


def limits(number: int, reduce_range: bool = False, symmetric: bool = False) -> tuple[int, int]:
    """Return the smallest and largest number of a quantized integer type."""
    if number == FLOAT8E4M3FN:
        raise NotImplementedError("float8 types have no range of integers")
    table = _REDUCED if reduce_range else _WHOLE
    if symmetric and not reduce_range and number in _SYMMETRIC:
        table = _SYMMETRIC
    if number not in table:
        raise ValueError(
            f"the type {float_name(number)} is not one that is quantized to; these are "
            f"{', '.join(float_name(n) for n in _WHOLE)}"
        )
    return table[number]


def typed_limits(
    number: int, reduce_range: bool = False, symmetric: bool = False
) -> tuple[Any, Any]:
    """Return `limits` as arrays of the type."""
    low, high = limits(number, reduce_range, symmetric)
    dtype = dtype_of(number).np
    return np.array(low, dtype), np.array(high, dtype)


def typed_table(kind: str) -> dict[int, tuple[Any, Any]]:
    """Return a table of ranges as arrays: "whole", "symmetric" or "reduced"."""
    table = {"whole": _WHOLE, "symmetric": _SYMMETRIC, "reduced": _REDUCED}[kind]
    return {
        n: (np.array(a, dtype_of(n).np), np.array(b, dtype_of(n).np)) for n, (a, b) in table.items()
    }


FLOAT8_E4M3FN: Final = by_name("f8e4m3fn")

"""The datatypes of the Open Inference Protocol (KServe v2), with their numpy and ONNX types."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from sardonyx.base.records import frozen

Array = np.ndarray[Any, np.dtype[Any]]


@frozen(eq=False)
class Datatype:
    """One datatype: how it is named in the protocol, and what it is elsewhere."""

    name: str  # FP32
    dtype: np.dtype[Any]
    onnx_name: str  # tensor(float)
    contents: str  # the field of InferTensorContents; empty: 16-bit floats are raw only

    @property
    def is_bytes(self) -> bool:
        """Return whether elements have lengths of their own."""
        return self.dtype.kind == "O"


def _type(name: str, dtype: Any, onnx_name: str, contents: str = "") -> Datatype:
    return Datatype(name, np.dtype(dtype), f"tensor({onnx_name})", contents)


BYTES: Final = _type("BYTES", object, "string", "bytes_contents")
DATATYPES: Final = (
    _type("BOOL", np.bool_, "bool", "bool_contents"),
    _type("UINT8", np.uint8, "uint8", "uint_contents"),
    _type("UINT16", np.uint16, "uint16", "uint_contents"),
    _type("UINT32", np.uint32, "uint32", "uint_contents"),
    _type("UINT64", np.uint64, "uint64", "uint64_contents"),
    _type("INT8", np.int8, "int8", "int_contents"),
    _type("INT16", np.int16, "int16", "int_contents"),
    _type("INT32", np.int32, "int32", "int_contents"),
    _type("INT64", np.int64, "int64", "int64_contents"),
    _type("FP16", np.float16, "float16"),
    _type("BF16", ml_dtypes.bfloat16, "bfloat16"),
    _type("FP32", np.float32, "float", "fp32_contents"),
    _type("FP64", np.float64, "double", "fp64_contents"),
    BYTES,
)
BY_NAME: Final = {each.name: each for each in DATATYPES}
BY_ONNX: Final = {each.onnx_name: each for each in DATATYPES}
BY_DTYPE: Final = {each.dtype: each for each in DATATYPES}

"""OrtValue: a tensor as onnxruntime's programs hand it about, over the memory of an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.graph.dtype import by_numpy


class OrtValue:
    """A tensor in the memory of a numpy array, which it keeps and does not copy."""

    def __init__(self, array: Any) -> None:
        dtype = by_numpy(array.dtype) if isinstance(array, np.ndarray) else None
        if dtype is None or dtype.bits < 8:  # those have another form in numpy than in ONNX
            kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise InvalidArgument(f"an OrtValue holds an array of a type of ONNX, not {kind}")
        self._array, self._dtype = array, dtype

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A tensor over an array, which must not change as long as the tensor is used."""
        if device_type.lower() != "cpu":
            raise NotImplemented(f"tensors lie on the CPU here, not on {device_type}")
        return OrtValue(np.ascontiguousarray(numpy_obj).reshape(np.shape(numpy_obj)))

    def numpy(self) -> Any:
        """The array."""
        return self._array

    def shape(self) -> list[int]:
        """The size of each dim."""
        return list(self._array.shape)

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return self._dtype.onnx

    def data_type(self) -> str:
        """The type as onnxruntime writes it: tensor(float)."""
        return f"tensor({self._dtype.ort_name})"

    def device_name(self) -> str:
        """Where the tensor lies."""
        return "cpu"

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self._array.__array_interface__["data"][0])

    def tensor_size_in_bytes(self) -> int:
        """Bytes of all elements, in ONNX's form."""
        return self._dtype.packed_bytes(self._array.size)

    def has_value(self) -> bool:
        """Whether there is a value: always."""
        return True

    def is_tensor(self) -> bool:
        """Whether the value is a tensor: always."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Whether the value is a sparse tensor: never."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether the value is a list of tensors: never."""
        return False

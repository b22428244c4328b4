"""OrtValue: a value as onnxruntime's programs hand it about, over memory that is not copied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.device import OrtDevice, check_cpu
from sardonyx.enums import OrtDeviceVendorId, OrtMemoryInfoDeviceType
from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import STRING, DType, by_numpy, by_onnx
from sardonyx.weights.const import pack, unpack

if TYPE_CHECKING:
    from sardonyx.allocators import OrtMemoryInfo
    from sardonyx.sparse import SparseTensor

Array = np.ndarray[Any, Any]
Device = str | OrtDevice
_MOST_DIMS: Final = 64  # as in numpy
_MOST_ELEMENTS: Final = 1 << 56


class OrtValue:
    """A tensor, a sparse tensor, a list, a map, or nothing.

    A tensor lies in the memory of a numpy array, which it keeps; one of a type under 8 bits lies
    there packed, as ONNX stores it.
    """

    __slots__ = ("__weakref__", "_dtype", "_shape", "_value")
    _dtype: DType | None  # None for what is no tensor
    _shape: tuple[int, ...]
    _value: Any

    def __init__(self, ortvalue: Any, numpy_obj: Any = None, session: Any = None) -> None:
        """A value over an array, a list, a dict, a sparse tensor, None, or another OrtValue."""
        if isinstance(ortvalue, OrtValue):
            self._value, self._dtype = ortvalue._value, ortvalue._dtype
            self._shape = ortvalue._shape
            return
        self._value, self._dtype, self._shape = ortvalue, None, ()
        if isinstance(ortvalue, np.ndarray):
            self._hold(ortvalue)

    def _hold(self, array: Array) -> None:
        dtype = by_numpy(array.dtype)
        if dtype is None or array.dtype.kind in "US":
            raise ValueFault(f"an OrtValue holds a tensor of a type of ONNX, not {array.dtype}")
        self._dtype, self._shape, self._value = dtype, array.shape, array
        if dtype.bits < 8:
            self._value = np.frombuffer(bytearray(pack(array, dtype)), np.uint8)
        elif not array.flags.c_contiguous:
            self._value = np.array(array, order="C")

    @classmethod
    def _of_bytes(cls, raw: Array, dtype: DType, shape: tuple[int, ...]) -> OrtValue:
        """A tensor over an array that holds its bytes."""
        made = cls(None)
        made._dtype, made._shape = dtype, shape
        made._value = raw if dtype.bits < 8 else raw.view(dtype.np).reshape(shape)
        return made

    @classmethod
    def ortvalue_from_numpy(
        cls,
        numpy_obj: Any,
        /,
        device_type: Device = "cpu",
        device_id: int = 0,
        vendor_id: int | OrtDeviceVendorId = -1,
    ) -> OrtValue:
        """A tensor over an array's memory, which must not change while the tensor is used."""
        check_cpu(device_type, "a tensor")
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "USO":
            kind = getattr(numpy_obj, "dtype", type(numpy_obj).__name__)
            raise ValueFault(
                f"an OrtValue is made of a numpy array of numbers, not of {kind}",
                hint="feed strings and lists to run as they are",
            )
        return cls(numpy_obj)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, /, onnx_element_type: int) -> OrtValue:
        """A tensor whose bits are an array's, taken for a type that numpy may not have.

        Types under 8 bits are packed: the array has the tensor's shape all the same, as
        onnxruntime has it, and its first bytes count.
        """
        dtype = _dtype_of(onnx_element_type)
        if not isinstance(data, np.ndarray):
            raise TypeError(f"the bits of a tensor are a numpy array, not {type(data).__name__}")
        if data.dtype.itemsize != dtype.itemsize or data.dtype.hasobject or dtype is STRING:
            raise ValueFault(
                f"elements of {data.dtype} have {data.dtype.itemsize} bytes, "
                f"and those of {dtype.ort_name} {dtype.itemsize}"
            )
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        return cls._of_bytes(flat[: dtype.packed_bytes(data.size)], dtype, data.shape)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: Device = "cpu",
        device_id: int = 0,
        vendor_id: int | OrtDeviceVendorId = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        """A tensor of zeros, of a numpy type or one of ONNX's numbers."""
        check_cpu(device_type, "a tensor")
        if memory_info is not None and memory_info.device_type is not OrtMemoryInfoDeviceType.CPU:
            raise ValueFault(f"a tensor lies on the CPU here, not in {memory_info.name}")
        dtype = _dtype_of(element_type)
        if dtype is STRING:
            raise ValueFault("a tensor of strings cannot be made ahead of its strings")
        dims = _checked_shape(shape)
        raw = np.zeros(dtype.packed_bytes(math.prod(dims)), np.uint8)
        return cls._of_bytes(raw, dtype, dims)

    ortvalue_from_shape_and_onnx_type = ortvalue_from_shape_and_type

    @classmethod
    def ortvalue_from_shape_and_type_for_memory_info(
        cls, shape: Sequence[int], element_type: Any, memory_info: OrtMemoryInfo
    ) -> OrtValue:
        """A tensor of zeros in memory of the CPU."""
        return cls.ortvalue_from_shape_and_type(shape, element_type, memory_info=memory_info)

    ortvalue_from_shape_and_onnx_type_for_memory_info = ortvalue_from_shape_and_type_for_memory_info

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        """A value that is a sparse tensor."""
        from sardonyx.sparse import SparseTensor

        if not isinstance(sparse_tensor, SparseTensor):
            raise TypeError(f"a SparseTensor is wanted, not {type(sparse_tensor).__name__}")
        return cls(sparse_tensor)

    @classmethod
    def from_dlpack(cls, data: Any, /, is_bool_tensor: bool = False) -> OrtValue:
        """A tensor over the memory of another library's, by DLPack."""
        from sardonyx.dlpack import taken

        return taken(cls, data, is_bool_tensor)

    def __dlpack__(self, *, stream: object = None, **wishes: Any) -> Any:
        """The tensor for another library: over the same memory, or a copy if that is asked for."""
        from sardonyx.dlpack import given

        return given(self, **wishes)

    to_dlpack = __dlpack__

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's number of the CPU."""
        return 1, 0

    def numpy(self) -> Any:
        """The tensor as an array: over the same memory, but for types under 8 bits."""
        self._tensor()
        return self._fed()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"{self.data_type()} cannot be {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _fed(self) -> Any:
        """The value as `run` takes it."""
        if self._dtype is not None and self._dtype.bits < 8:
            made = unpack(self._value, self._dtype, math.prod(self._shape))
            return made.reshape(self._shape)
        return self._value

    def as_sparse_tensor(self) -> SparseTensor:
        """The sparse tensor."""
        if not self.is_sparse_tensor():
            raise ValueFault(f"the value is no sparse tensor: {self.data_type()}")
        made: SparseTensor = self._value
        return made

    def update_inplace(self, data: Any) -> None:
        """Writes another tensor's bytes over the own ones; there must be as many."""
        tensor = self._tensor()
        if isinstance(data, OrtValue):
            raw = data._tensor().reshape(-1).view(np.uint8)
        elif isinstance(data, np.ndarray) and not data.dtype.hasobject:
            self._check_bits(data)
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        else:
            raise TypeError(f"a tensor is updated from another or from an array, not {data!r}")
        if raw.nbytes != tensor.nbytes:
            raise ValueFault(
                f"the tensor has {tensor.nbytes} bytes, and {raw.nbytes} are to be written",
                tensor=f"{self.data_type()} {self.shape()}",
            )
        if not tensor.flags.writeable:
            raise ValueFault("the tensor lies in memory that is read-only")
        tensor.reshape(-1).view(np.uint8)[:] = raw

    def _check_bits(self, data: Array) -> None:
        """Refuses elements of another type; bits are taken where numpy has no such type."""
        dtype = self._dtype
        assert dtype is not None
        is_raw = dtype.np.type.__module__ != "numpy" and data.dtype.kind in "ui"
        if by_numpy(data.dtype) is not dtype and not (is_raw and data.itemsize == dtype.itemsize):
            raise ValueFault(
                f"the tensor is {self.data_type()}, and {data.dtype} is to be written",
                hint=f"convert it with array.astype({dtype.np.name!r})",
            )

    def shape(self) -> list[int]:
        """The size of each dim."""
        if self.is_sparse_tensor():
            return list(self._value.dense_shape())
        self._tensor()
        return list(self._shape)

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        if self.is_sparse_tensor():
            return int(self._value._dtype.onnx)
        if self._dtype is None:
            raise ValueFault(f"the value has no element type: {self.data_type()}")
        return self._dtype.onnx

    def data_type(self) -> str:
        """The type as onnxruntime writes it: tensor(float)."""
        if self._dtype is not None:
            return f"tensor({self._dtype.ort_name})"
        return _type_of(self._value)

    def device_name(self) -> str:
        """Where the value lies."""
        return "cpu"

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self._tensor().__array_interface__["data"][0])

    def tensor_size_in_bytes(self) -> int:
        """Bytes of all elements, in ONNX's form."""
        return int(self._tensor().nbytes)

    def has_value(self) -> bool:
        """Whether there is a value; an optional may have none."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Whether the value is a tensor."""
        return self._dtype is not None

    def is_sparse_tensor(self) -> bool:
        """Whether the value is a sparse tensor."""
        return self._dtype is None and hasattr(self._value, "dense_shape")

    def is_tensor_sequence(self) -> bool:
        """Whether the value is a list of tensors."""
        items = self._value
        return isinstance(items, list) and all(isinstance(i, np.ndarray) for i in items)

    def _tensor(self) -> Array:
        """The memory of the tensor; an error if the value is none."""
        if self._dtype is None:
            raise ValueFault(f"the value is no tensor: {self.data_type() or 'nothing'}")
        array: Array = self._value
        return array

    def _get_c_value(self) -> OrtValue:
        return self

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def __repr__(self) -> str:
        shape = f" {list(self._shape)}" if self._dtype is not None else ""
        return f"<OrtValue {self.data_type() or 'of nothing'}{shape}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._dtype is not None and self._dtype.bits < 8:
            return OrtValue._of_bytes, (self._value, self._dtype, self._shape)
        return OrtValue, (self._value,)


def as_ort_value(value: Any) -> OrtValue:
    """A result of a run as an OrtValue, over the same memory."""
    return value if isinstance(value, OrtValue) else OrtValue(value)


def _dtype_of(element_type: Any) -> DType:
    """An element type from ONNX's number or a numpy type."""
    if isinstance(element_type, int):
        found = by_onnx(element_type)
    else:
        try:
            found = by_numpy(np.dtype(element_type))
        except TypeError:
            found = None
    if found is None:
        raise ValueFault(
            f"{element_type!r} is no element type",
            hint="give a numpy type, or a number of onnx.TensorProto.DataType",
        )
    return found


def _checked_shape(shape: Any) -> tuple[int, ...]:
    dims = tuple(int(d) for d in shape)
    if any(d < 0 for d in dims):
        raise ValueFault(f"a shape has sizes of 0 or more, not {list(dims)}")
    if len(dims) > _MOST_DIMS or math.prod(max(d, 1) for d in dims) > _MOST_ELEMENTS:
        raise ValueFault(f"no memory holds a tensor of shape {list(dims)}")
    return dims


def _type_of(value: Any) -> str:
    """The type of what is no tensor; empty where there is no value."""
    if value is None:
        return ""
    if isinstance(value, np.ndarray):
        dtype = by_numpy(value.dtype)
        return "" if dtype is None else f"tensor({dtype.ort_name})"
    if isinstance(value, list):
        return f"seq({_type_of(value[0]) if value else 'tensor(undefined)'})"
    if isinstance(value, dict):
        key, item = next(iter(value.items()), (0, 0.0))
        return f"map({_scalar(key)},tensor({_scalar(item)}))"
    if hasattr(value, "dense_shape"):
        return str(value.data_type())
    return _scalar(value)


def _scalar(value: Any) -> str:
    dtype = by_numpy(np.asarray(value).dtype)
    return "undefined" if dtype is None else dtype.ort_name

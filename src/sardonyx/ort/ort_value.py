"""OrtValue: a tensor, sparse tensor, sequence, map or empty optional, without copying memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.base.torch_tensor import borrowed, is_tensor
from sardonyx.errors import ValueFault
from sardonyx.graph.const import pack, unpack
from sardonyx.graph.dtype import STRING, DType, by_numpy, by_onnx
from sardonyx.ort.device import OrtDevice, device_values, torch_name
from sardonyx.ort.enums import OrtDeviceVendorId
from sardonyx.place.provider import HOST

if TYPE_CHECKING:
    from sardonyx.ort.allocators import OrtMemoryInfo
    from sardonyx.ort.sparse_tensor import SparseTensor

Array = np.ndarray[Any, Any]
Device = str | OrtDevice
_MAX_DIMS: Final = 64  # as in numpy
_MAX_ELEMENTS: Final = 1 << 56  # an element has up to 16 bytes: sizes in bytes fit into int64


class OrtValue:
    """A tensor, a sparse tensor, a list, a map, or nothing.

    A tensor refers to the memory of a numpy array or, on a device, of a torch tensor, which it
    keeps alive; elements of less than 8 bits are packed, as ONNX stores them. A non-contiguous
    array is copied. The memory must not be moved, as `array.resize(refcheck=False)` does.
    """

    __slots__ = ("__weakref__", "_dtype", "_shape", "_value")
    _dtype: DType | None  # None if the value is not a tensor
    _shape: tuple[int, ...]
    _value: Any

    def __init__(self, ortvalue: Any, numpy_obj: Any = None, session: Any = None) -> None:
        """Wrap an array, a list, a dict, a sparse tensor, None, or another OrtValue.

        A torch tensor is accepted as well; it is copied only if it is not contiguous.
        """
        if isinstance(ortvalue, OrtValue):
            self._value, self._dtype = ortvalue._value, ortvalue._dtype
            self._shape = ortvalue._shape
            return
        self._value, self._dtype, self._shape = ortvalue, None, ()
        if isinstance(ortvalue, np.ndarray):
            self._set_array(ortvalue)
        elif is_tensor(ortvalue):
            self._dtype, self._value = device_values("a device").type_and_memory(ortvalue)
            self._shape = tuple(ortvalue.shape)

    def _set_array(self, array: Array) -> None:
        dtype = by_numpy(array.dtype)
        if dtype is None or array.dtype.kind in "US":
            raise ValueFault(f"ONNX has no tensors of {array.dtype}")
        self._dtype, self._shape, self._value = dtype, array.shape, array
        if dtype.bits < 8:
            # Through a bytearray: an array over bytes would be read-only.
            self._value = np.frombuffer(bytearray(pack(array, dtype)), np.uint8)
        elif not array.flags.c_contiguous:
            self._value = np.array(array, order="C")

    @classmethod
    def _of_bytes(cls, raw: Any, dtype: DType, shape: tuple[int, ...]) -> OrtValue:
        """Return a tensor over an array, or a device tensor, of its bytes."""
        value = cls(None)
        value._dtype, value._shape = dtype, shape
        if dtype.bits < 8:
            value._value = raw
        elif isinstance(raw, np.ndarray):
            value._value = raw.view(dtype.np).reshape(shape)
        else:
            value._value = device_values("a device").of_bytes(raw, dtype, shape)
        return value

    @classmethod
    def ortvalue_from_numpy(
        cls,
        numpy_obj: Any,
        /,
        device_type: Device = "cpu",
        device_id: int = 0,
        vendor_id: int | OrtDeviceVendorId = -1,
    ) -> OrtValue:
        """Return a tensor over an array's memory, which must not change while the tensor is used.

        For a device other than the CPU the array is copied there.
        """
        device = torch_name(device_type, device_id, vendor_id)
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "USO":
            kind = getattr(numpy_obj, "dtype", type(numpy_obj).__name__)
            raise ValueFault(
                f"numpy_obj must be a numpy array of numbers, got {kind}",
                hint="pass strings and lists to run directly",
            )
        value = cls(numpy_obj)
        return value if device == HOST else value._copied_to(device)

    def _at(self, device: str) -> OrtValue:
        """Return the value on a device: itself if it is there or not a tensor of numbers."""
        if self._dtype is None or self._dtype is STRING or self._device() == device:
            return self
        return OrtValue(self.numpy()) if device == HOST else self._copied_to(device)

    def _copied_to(self, device: str) -> OrtValue:
        """Return a copy of a tensor on a device other than the host."""
        values = device_values(device)
        assert self._dtype is not None
        values.check_type(self._dtype, device)
        raw = values.copy_to_device(self._tensor(), device)
        return OrtValue._of_bytes(raw, self._dtype, self._shape)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, /, onnx_element_type: int) -> OrtValue:
        """Return a tensor with the bits of an array, reinterpreted as an ONNX type.

        For types of less than 8 bits, as in onnxruntime, the array has the tensor's shape and its
        first bytes hold the packed elements.
        """
        dtype = _dtype_of(onnx_element_type)
        if not isinstance(data, np.ndarray):
            raise TypeError(f"data must be a numpy array, got {type(data).__name__}")
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
        """Return a tensor of zeros of a numpy type or an ONNX element type number."""
        where: Device = device_type if memory_info is None else memory_info._device()
        if memory_info is not None and memory_info.device_vendor_id not in set(OrtDeviceVendorId):
            raise ValueFault(f"No shared allocator found for {memory_info}")
        device = torch_name(where, device_id, vendor_id)
        dtype = _dtype_of(element_type)
        if dtype is STRING:
            raise ValueFault(
                "a tensor of strings cannot be allocated without its strings: the type must be "
                "that of non-string numpy arrays"
            )
        dims = _checked_shape(shape)
        n_bytes = dtype.packed_bytes(math.prod(dims))
        if device == HOST:
            return cls._of_bytes(np.zeros(n_bytes, np.uint8), dtype, dims)
        raw = device_values(device).zeros(dtype, n_bytes, device)
        return cls._of_bytes(raw, dtype, dims)

    ortvalue_from_shape_and_onnx_type = ortvalue_from_shape_and_type

    @classmethod
    def ortvalue_from_shape_and_type_for_memory_info(
        cls, shape: Sequence[int], element_type: Any, memory_info: OrtMemoryInfo
    ) -> OrtValue:
        """Return a tensor of zeros in memory of this kind."""
        return cls.ortvalue_from_shape_and_type(shape, element_type, memory_info=memory_info)

    ortvalue_from_shape_and_onnx_type_for_memory_info = ortvalue_from_shape_and_type_for_memory_info

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        """Return a value that is a sparse tensor."""
        from sardonyx.ort.sparse_tensor import SparseTensor

        if not isinstance(sparse_tensor, SparseTensor):
            raise TypeError(
                f"sparse_tensor must be a SparseTensor, got {type(sparse_tensor).__name__}"
            )
        return cls(sparse_tensor)

    @classmethod
    def from_dlpack(cls, data: Any, /, is_bool_tensor: bool = False) -> OrtValue:
        """Return a tensor over the memory of another library's tensor."""
        from sardonyx.ort.dlpack import import_tensor

        return import_tensor(cls, data, is_bool_tensor)

    def __dlpack__(self, *, stream: object = None, **keywords: Any) -> Any:
        """Return a DLPack capsule over the same memory, or over a copy if `copy` is set."""
        from sardonyx.ort.dlpack import export_capsule

        return export_capsule(self, stream, **keywords)

    to_dlpack = __dlpack__

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and device id."""
        if self._dtype is None or isinstance(self._value, np.ndarray):
            return 1, 0  # kDLCPU
        kind, number = self._value.__dlpack_device__()
        return int(kind), int(number)

    def numpy(self) -> Any:
        """Return the tensor as an array; a copy for types of less than 8 bits and on devices."""
        self._tensor()
        fed = self._fed()
        return device_values("a device").to_arrays([fed])[0] if is_tensor(fed) else fed

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"{self.data_type()} cannot be {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _fed(self) -> Any:
        """Return the value as `run` accepts it."""
        if self._dtype is not None and self._dtype.bits < 8:
            raw = self._value
            if not isinstance(raw, np.ndarray):
                raw = device_values("a device").to_arrays([raw])[0]
            return unpack(raw, self._dtype, math.prod(self._shape)).reshape(self._shape)
        return self._value if self._dtype is None else self._tensor()

    def as_sparse_tensor(self) -> SparseTensor:
        """Return the sparse tensor."""
        if not self.is_sparse_tensor():
            raise ValueFault(f"the value is not a sparse tensor: {self.data_type()}")
        tensor: SparseTensor = self._value
        return tensor

    def update_inplace(self, data: Any) -> None:
        """Overwrite the tensor with the elements of another of its type and size."""
        tensor, source = self._tensor(), self._source(data)
        if source.nbytes != tensor.nbytes:
            raise ValueFault(
                f"the tensor has {tensor.nbytes} bytes, and the new value has {source.nbytes}",
                tensor=f"{self.data_type()} {self.shape()}",
            )
        if isinstance(tensor, np.ndarray) and not tensor.flags.writeable:
            raise ValueFault("the tensor is in read-only memory")
        if isinstance(tensor, np.ndarray) and isinstance(source, np.ndarray):
            tensor.reshape(-1).view(np.uint8)[:] = source.reshape(-1).view(np.uint8)
        else:
            device_values("a device").write(tensor, source)

    def _source(self, data: Any) -> Any:
        """Return the memory of a new value for this tensor, after type checks."""
        if self._dtype is STRING:
            raise ValueFault("a tensor of strings cannot be overwritten: create another")
        if isinstance(data, np.ndarray) and not data.dtype.hasobject:
            self._check_bits(data.dtype)
            return OrtValue(data)._value if data.dtype == self._np else np.ascontiguousarray(data)
        if not isinstance(data, OrtValue) and not is_tensor(data):
            raise TypeError(f"a tensor must be updated from another or from an array, got {data!r}")
        value = OrtValue(data)
        source = value._tensor()
        assert value._dtype is not None
        self._check_bits(value._dtype.np)
        return source

    @property
    def _np(self) -> np.dtype[Any]:
        assert self._dtype is not None
        return self._dtype.np

    def _check_bits(self, np_type: np.dtype[Any]) -> None:
        """Raise an error for another element type, except raw bits of types numpy does not have."""
        dtype = self._dtype
        assert dtype is not None
        # ml_dtypes' types, such as bfloat16, are often held as unsigned integers by callers.
        is_raw = dtype.np.type.__module__ != "numpy" and np_type.kind in "ui"
        has_size = np_type.itemsize == dtype.itemsize
        if by_numpy(np_type) is not dtype and not (is_raw and has_size):
            raise ValueFault(
                f"the tensor is {self.data_type()}, and the new value is {np_type}",
                hint=f"convert it with array.astype({dtype.np.name!r})",
            )

    def shape(self) -> list[int]:
        """Return the size of each dim."""
        if self.is_sparse_tensor():
            return list(self._value.dense_shape())
        self._tensor()
        return list(self._shape)

    def element_type(self) -> int:
        """Return ONNX's number of the element type."""
        if self.is_sparse_tensor():
            return int(self._value._dtype.onnx)
        if self._dtype is None:
            raise ValueFault(f"the value has no element type: {self.data_type()}")
        return self._dtype.onnx

    def data_type(self) -> str:
        """Return the type as onnxruntime spells it: tensor(float)."""
        if self._dtype is not None:
            return f"tensor({self._dtype.ort_name})"
        return _type_of(self._value)

    def device_name(self) -> str:
        """Return the type of the value's device."""
        return self._device().partition(":")[0]

    def _device(self) -> str:
        """Return torch's name of the device, or HOST."""
        if self._dtype is None or isinstance(self._value, np.ndarray):
            return HOST
        device = self._value.device
        return f"{device.type}:{device.index or 0}"

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        tensor = self._tensor()
        if isinstance(tensor, np.ndarray):
            return int(tensor.__array_interface__["data"][0])
        return int(tensor.data_ptr())

    def tensor_size_in_bytes(self) -> int:
        """Return the size of all elements in bytes, packed if they have less than 8 bits."""
        return int(self._tensor().nbytes)

    def has_value(self) -> bool:
        """Return whether there is a value; an optional may have none."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Return whether the value is a tensor."""
        return self._dtype is not None

    def is_sparse_tensor(self) -> bool:
        """Return whether the value is a sparse tensor."""
        return self._dtype is None and hasattr(self._value, "dense_shape")

    def is_tensor_sequence(self) -> bool:
        """Return whether the value is a list of tensors."""
        items = self._value
        return isinstance(items, list) and all(isinstance(i, np.ndarray) for i in items)

    def _tensor(self) -> Any:
        """Return the array or torch tensor; raise an error if the value is not a tensor."""
        if self._dtype is None:
            raise ValueFault(f"the value is not a tensor: {self.data_type() or 'nothing'}")
        borrow = borrowed(self._value)
        if borrow is not None:
            borrow.check()
        return self._value

    def _get_c_value(self) -> OrtValue:
        return self

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def __repr__(self) -> str:
        shape = f" {list(self._shape)}" if self._dtype is not None else ""
        device = self.device_name()
        where = "" if device == HOST else f" on {device}"
        return f"<OrtValue {self.data_type() or 'of nothing'}{shape}{where}>"

    def _repr_html_(self) -> str:
        from sardonyx.base.notebook import panel

        rows: list[tuple[str, object]] = [
            ("type", self.data_type()),
            ("device", self.device_name()),
        ]
        if self._dtype is not None:
            rows.append(("shape", list(self._shape)))
            if self.device_name() == HOST and self._dtype.bits >= 8:
                first = self.numpy().reshape(-1)[:8].tolist()
                dots = ", ..." if math.prod(self._shape) > len(first) else ""
                rows.append(("elements", f"{', '.join(map(str, first))}{dots}"))
        return panel("OrtValue", "", rows)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._dtype is not None and self._dtype.bits < 8:
            return OrtValue._of_bytes, (self._value, self._dtype, self._shape)
        return OrtValue, (self._value,)


def as_ort_value(value: Any) -> OrtValue:
    """Return a result of a run as an OrtValue, copied only if it is not contiguous."""
    if isinstance(value, OrtValue):
        return value
    return OrtValue(value.contiguous() if is_tensor(value) else value)


def _dtype_of(element_type: Any) -> DType:
    """Return the dtype of an ONNX element type number or a numpy type."""
    if isinstance(element_type, int):
        dtype = by_onnx(element_type)
    else:
        try:
            dtype = by_numpy(np.dtype(element_type))
        except TypeError:
            dtype = None
    if dtype is None:
        raise ValueFault(
            f"{element_type!r} is not an element type",
            hint="pass a numpy type, or a number of onnx.TensorProto.DataType",
        )
    return dtype


def _checked_shape(shape: Any) -> tuple[int, ...]:
    dims = tuple(index(d) for d in shape)
    if any(d < 0 for d in dims):
        raise ValueFault(f"a shape must have sizes of 0 or more, got {list(dims)}")
    if len(dims) > _MAX_DIMS or math.prod(max(d, 1) for d in dims) > _MAX_ELEMENTS:
        raise ValueFault(f"a tensor of shape {list(dims)} has too many dims or elements")
    return dims


def _type_of(value: Any) -> str:
    """Return the type of a value that is not a tensor; empty if there is no value."""
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

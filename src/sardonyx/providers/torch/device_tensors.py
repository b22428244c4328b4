"""Values on devices: transfers, views of foreign memory (DLPack, addresses), validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack as imported

from sardonyx.errors import SardonyxError, ValueFault
from sardonyx.graph.dtype import U8, DType, by_numpy
from sardonyx.place.provider import TORCH_HOST
from sardonyx.providers.torch.dtypes import TORCH, as_array, as_tensor, ours

Array = np.ndarray[Any, Any]
Owner = tuple[str, int]  # a device, and the address of a storage on it
_SYNCHRONOUS: Final = ("cpu", "meta")  # always present, and never waited for
_MAX_PINNED_BYTES: Final = 64 << 20  # results of one run; torch never frees pinned memory


def device_of(name: str) -> torch.device:
    """Return the device of a name such as "cuda:0"; raise an error if torch does not see it."""
    device = torch.device(name)
    if device.type in _SYNCHRONOUS:
        return device
    kind = getattr(torch, device.type, None)
    count = 0 if kind is None else kind.device_count()
    if (device.index or 0) >= count:
        raise ValueFault(
            f"a value is requested on {name}, and torch {torch.__version__} sees "
            f"{count} devices of that kind",
            hint="see torch.cuda.is_available(), and whether torch is a build for the device",
        )
    return device


def is_at(tensor: Tensor, name: str) -> bool:
    """Return whether a tensor is on the device that placement calls by a name."""
    here = tensor.device
    return name == (TORCH_HOST if here.type == "cpu" else _space(here))


def plain(tensor: Tensor) -> Tensor:
    """Return the tensor detached from autograd, with lazy conjugation and negation resolved."""
    check_memory(tensor)
    if ours(tensor.dtype) is None:
        raise ValueFault(f"ONNX has no element type {tensor.dtype}")
    # New tensor objects cost time on the host: most tensors need none.
    if not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg()


def check_memory(tensor: Tensor) -> None:
    """Raise an error for tensors that are not strided views of their own storage."""
    # Wrapper subclasses (DTensor, FakeTensor) dispatch to inner tensors.
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise ValueFault(
            f"a {type(tensor).__name__} stands for a tensor and has no memory of its own",
            hint="pass the tensor that it stands for: DTensor.to_local(), or full_tensor()",
        )
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of the layout {tensor.layout}"
        raise ValueFault(f"ONNX has no equivalent of {kind}")
    if not tensor.is_meta and not _has_memory(tensor):
        raise _no_memory(tensor, "an FSDP parameter has memory only while it is gathered")


def _no_memory(tensor: Tensor, hint: str) -> ValueFault:
    what = f"a tensor of shape {list(tensor.shape)} on {tensor.device} has no memory"
    return ValueFault(what, hint=hint)


def _has_memory(tensor: Tensor) -> bool:
    """Return whether all elements are inside the tensor's storage, which may be resized."""
    _, begin, end = bounds(tensor)
    storage = tensor.untyped_storage()
    return begin == end or (begin != 0 and end <= storage.data_ptr() + storage.nbytes())


def dtype_of(tensor: Tensor) -> DType:
    """Return the element type of a tensor checked by `plain`."""
    dtype = ours(tensor.dtype)
    assert dtype is not None
    return dtype


def type_and_memory(tensor: Tensor) -> tuple[DType, Any]:
    """Return a contiguous tensor's type and memory: an array if it is on the CPU."""
    tensor = plain(tensor)
    if not tensor.is_contiguous():
        raise ValueFault(
            f"a tensor of shape {list(tensor.shape)} with the strides {list(tensor.stride())} is "
            "not contiguous",
            hint="call contiguous() first",
        )
    is_host = tensor.device.type == "cpu"
    return dtype_of(tensor), as_array(tensor) if is_host else tensor


def of_bytes(raw: Tensor, dtype: DType, shape: Sequence[int]) -> Tensor:
    """Return a tensor over bytes; types under 8 bits stay packed."""
    return raw if dtype.bits < 8 else raw.reshape(-1).view(TORCH[dtype]).reshape(tuple(shape))


def zeros(dtype: DType, n_bytes: int, name: str) -> Tensor:
    """Return zeroed bytes on a device, for a tensor of a type."""
    check_type(dtype, name)
    try:
        return torch.zeros(n_bytes, dtype=torch.uint8, device=device_of(name))
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(n_bytes, name, error) from None


def copy_to_device(value: Any, name: str) -> Tensor:
    """Return the bytes of an array or a tensor in new memory of a device."""
    raw = _bytes(value)
    try:
        return raw.to(device_of(name), copy=True)
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(raw.nbytes, name, error) from None


def _out_of_memory(n_bytes: int, name: str, error: Exception) -> ValueFault:
    reason = str(error).partition("\n")[0]
    return ValueFault(f"{name} has no memory for a value of {n_bytes} bytes: {reason}")


def check_type(dtype: DType, name: str) -> None:
    """Raise an error for a type that torch lacks; types under 8 bits are stored as bytes."""
    if dtype.bits >= 8 and dtype not in TORCH:
        raise ValueFault(
            f"torch has no tensors of {dtype.ort_name}, so values on {name} cannot have that type",
            hint='keep the value on "cpu"',
        )


def to_arrays(tensors: Sequence[Tensor]) -> list[Array]:
    """Return tensors as arrays; device tensors are copied, with one synchronization for all."""
    for tensor in tensors:
        if tensor.is_meta:
            raise _no_memory(tensor, "pass a tensor on a real device")
    # Asynchronous copies go to pinned memory; then one synchronization suffices for all.
    total = sum(t.nbytes for t in tensors)
    is_async = total <= _MAX_PINNED_BYTES
    copies = [t.to("cpu", non_blocking=is_async) for t in tensors]
    if is_async:
        finish(tensors)
    return [as_array(t) for t in copies]


def finish(values: Iterable[Any]) -> None:
    """Wait for the current streams of the devices of these values."""
    for device in _devices(values):
        kind = getattr(torch, device.type)
        if hasattr(kind, "current_stream"):
            kind.current_stream(device).synchronize()
        else:
            kind.synchronize()


def synchronize(values: Iterable[Any]) -> None:
    """Wait for all streams of the devices of these values."""
    for device in _devices(values):
        kind = getattr(torch, device.type)
        kind.synchronize(*(() if device.type == "mps" else (device,)))


def _devices(values: Iterable[Any]) -> set[torch.device]:
    devices = {v.device for v in values if isinstance(v, Tensor)}
    return {device for device in devices if device.type not in _SYNCHRONOUS}


def write(target: Any, source: Any) -> None:
    """Copy the bytes of an array or tensor to another of the same size, across devices."""
    _bytes(target).copy_(_bytes(source))


def _bytes(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        value = as_tensor(value.reshape(-1).view(np.uint8), U8)
    flat: Tensor = value.reshape(-1).view(torch.uint8)
    return flat


def from_dlpack(data: Any) -> Tensor:
    """Return a tensor over the memory of an object with `__dlpack__`, or of a capsule."""
    if isinstance(data, Tensor):
        return plain(data)
    try:
        return plain(imported(data))
    except SardonyxError:
        raise
    except Exception as error:  # from torch or from the other library
        reason = str(error).partition("\n")[0]
        what = f"{type(data).__name__} is not a DLPack tensor for torch"
        raise ValueFault(f"{what}: {reason}") from None


def to_dlpack(tensor: Tensor, stream: Any, keywords: dict[str, Any]) -> Any:
    """Return a DLPack capsule of a tensor, by the keywords of `__dlpack__`."""
    # torch requires the tensor's device to be the current one.
    with torch.cuda.device(tensor.device if tensor.is_cuda else -1):
        return tensor.__dlpack__(stream=stream, **keywords)


class _Memory:
    """Bytes at a CUDA address, with the interface by which torch imports foreign memory."""

    def __init__(self, pointer: int, n_bytes: int, owner: Any) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (n_bytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }


def bytes_at(pointer: int, n_bytes: int, name: str, owner: Any = None) -> Tensor:
    """Return a tensor over bytes at a device address, kept alive by `owner` or the caller."""
    device = device_of(name)
    if device.type != "cuda":
        raise ValueFault(
            f"memory of {name} cannot be imported by its address",
            hint="bind an OrtValue: OrtValue.from_dlpack(tensor)",
        )
    if not n_bytes:
        return torch.empty(0, dtype=torch.uint8, device=device)
    try:
        tensor = torch.as_tensor(_Memory(pointer, n_bytes, owner), device=device)
    except (RuntimeError, ValueError) as error:  # the driver knows no device of the address
        reason = str(error).partition("\n")[0]
        raise ValueFault(f"there is no memory of {name} at {pointer:#x}: {reason}") from None
    if tensor.data_ptr() != pointer:
        raise ValueFault(f"the memory at {pointer:#x} is not on {name}")
    return tensor


def owner_of(tensor: Tensor) -> Owner:
    """Return a key that tensors over the same storage share."""
    return _space(tensor.device), tensor.untyped_storage().data_ptr()


def bounds(tensor: Tensor) -> tuple[str, int, int]:
    """Return the device, the address of the first byte, and the one after the last."""
    # Strides of torch are never negative, so the first element is the lowest address.
    begin, size = tensor.data_ptr(), tensor.nbytes
    if size and not tensor.is_contiguous():
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        size = (last + 1) * tensor.element_size()
    return _space(tensor.device), begin, begin + size


@cache
def _space(device: torch.device) -> str:
    """Return the name of a device's address space."""
    return f"{device.type}:{device.index or 0}"


def as_tensors(values: Sequence[Any]) -> list[Any]:
    """Return arrays as tensors over the same memory, where torch has their type."""
    return [_as_tensor(v) for v in values]


def _as_tensor(value: Any) -> Any:
    if isinstance(value, list):
        return as_tensors(value)
    if not isinstance(value, np.ndarray):
        return value
    dtype = by_numpy(value.dtype)
    return as_tensor(value, dtype) if dtype in TORCH else value


def new_stream(name: str) -> Any:
    """Return a new stream of a GPU."""
    return torch.cuda.Stream(device_of(name))  # type: ignore[no-untyped-call]


def on_stream(stream: Any) -> Any:
    """Return a context in which device work is submitted to a stream."""
    return torch.cuda.stream(stream)


def gpus() -> list[tuple[int, dict[str, str]]]:
    """Return the PCI device id and properties of each GPU; none if CUDA fails to start."""
    try:
        return [_gpu(n) for n in range(torch.cuda.device_count())]
    except (RuntimeError, AssertionError):  # an old driver, a device in exclusive use
        return []


def _gpu(number: int) -> tuple[int, dict[str, str]]:
    properties: Any = torch.cuda.get_device_properties(number)
    metadata = {
        "name": str(properties.name),
        "total_memory_bytes": str(properties.total_memory),
        "compute_capability": f"{properties.major}.{properties.minor}",
    }
    if not hasattr(properties, "pci_bus_id"):
        return 0, metadata
    domain = getattr(properties, "pci_domain_id", 0)
    address = f"{domain:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    metadata["pci"] = address
    try:
        with open(f"/sys/bus/pci/devices/{address}/device", encoding="ascii") as file:
            return int(file.read(), 16), metadata
    except (OSError, ValueError):
        return 0, metadata

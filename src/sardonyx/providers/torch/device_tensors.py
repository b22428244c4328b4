"""Values on devices: brought there and back, looked at, written; tensors that others made."""

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
Owner = tuple[str, int]  # a device, and the address of a block of its memory
_ALWAYS_THERE: Final = ("cpu", "meta")  # kinds of devices, which nobody waits for
_MOST_PINNED_BYTES: Final = 64 << 20  # of results in one run; pinned memory is never given back


def device_of(name: str) -> torch.device:
    """The device of a name, as in "cuda:0"; an error where torch does not see it."""
    device = torch.device(name)
    if device.type in _ALWAYS_THERE:
        return device
    kind = getattr(torch, device.type, None)
    count = 0 if kind is None else kind.device_count()
    if (device.index or 0) >= count:
        raise ValueFault(
            f"a value is to lie on {name}, and torch {torch.__version__} sees "
            f"{count} devices of that kind",
            hint="see torch.cuda.is_available(), and whether torch is a build for the device",
        )
    return device


def is_at(tensor: Tensor, name: str) -> bool:
    """Whether a tensor lies on the device that homes of values call by a name."""
    here = tensor.device
    return name == (TORCH_HOST if here.type == "cpu" else _space(here))


def plain(tensor: Tensor) -> Tensor:
    """The numbers of a tensor alone: without a gradient, or conjugation that is put off."""
    check_memory(tensor)
    if ours(tensor.dtype) is None:
        raise ValueFault(f"ONNX has no element type {tensor.dtype}")
    if not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg()


def check_memory(tensor: Tensor) -> None:
    """Refuses a tensor whose elements do not lie in memory of its own, by strides."""
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise ValueFault(
            f"a {type(tensor).__name__} stands for a tensor, and has no memory of its own",
            hint="give the tensor that it stands for: DTensor.to_local(), or full_tensor()",
        )
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of the layout {tensor.layout}"
        raise ValueFault(f"{kind} is none of ONNX's")
    if not tensor.is_meta and not _has_memory(tensor):
        raise _no_memory(tensor, "one of FSDP has some only while it is gathered")


def _no_memory(tensor: Tensor, hint: str) -> ValueFault:
    what = f"a tensor of shape {list(tensor.shape)} on {tensor.device} has no memory"
    return ValueFault(what, hint=hint)


def _has_memory(tensor: Tensor) -> bool:
    """Whether all elements lie in the tensor's storage, which may have been resized."""
    _, begin, end = bounds(tensor)
    storage = tensor.untyped_storage()
    return begin == end or (begin != 0 and end <= storage.data_ptr() + storage.nbytes())


def dtype_of(tensor: Tensor) -> DType:
    """Our element type of a plain tensor."""
    made = ours(tensor.dtype)
    assert made is not None
    return made


def held(tensor: Tensor) -> tuple[DType, Any]:
    """A tensor's type and its memory, which has no gaps: an array for one on the CPU."""
    tensor = plain(tensor)
    if not tensor.is_contiguous():
        raise ValueFault(
            f"a tensor of shape {list(tensor.shape)} with the strides {list(tensor.stride())} has "
            "gaps",
            hint="make it contiguous first",
        )
    is_host = tensor.device.type == "cpu"
    return dtype_of(tensor), as_array(tensor) if is_host else tensor


def of_bytes(raw: Tensor, dtype: DType, shape: Sequence[int]) -> Tensor:
    """A tensor over one of bytes; types under 8 bits stay packed there."""
    return raw if dtype.bits < 8 else raw.reshape(-1).view(TORCH[dtype]).reshape(tuple(shape))


def zeros(dtype: DType, n_bytes: int, name: str) -> Tensor:
    """Bytes on a device, for a tensor of a type."""
    check_type(dtype, name)
    try:
        return torch.zeros(n_bytes, dtype=torch.uint8, device=device_of(name))
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(n_bytes, name, error) from None


def copied(value: Any, name: str) -> Tensor:
    """The bytes of an array or a tensor in new memory of a device."""
    raw = _bytes(value)
    try:
        return raw.to(device_of(name), copy=True)
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(raw.nbytes, name, error) from None


def _out_of_memory(n_bytes: int, name: str, error: Exception) -> ValueFault:
    said = str(error).partition("\n")[0]
    return ValueFault(f"a value of {n_bytes} bytes finds no memory on {name}: {said}")


def check_type(dtype: DType, name: str) -> None:
    """Refuses a type that torch has no tensors of; those under 8 bits lie in bytes."""
    if dtype.bits >= 8 and dtype not in TORCH:
        raise ValueFault(
            f"torch has no tensors of {dtype.ort_name}, so that none lies on {name}",
            hint='leave it on "cpu"',
        )


def downloaded(tensors: Sequence[Tensor]) -> list[Array]:
    """Tensors as arrays: copies of those that lie on devices, made with one wait for all."""
    for tensor in tensors:
        if tensor.is_meta:
            raise _no_memory(tensor, "give one of a device that computes")
    total = sum(t.nbytes for t in tensors)
    is_async = total <= _MOST_PINNED_BYTES
    copies = [t.to("cpu", non_blocking=is_async) for t in tensors]
    if is_async:
        finish(tensors)
    return [as_array(t) for t in copies]


def finish(values: Iterable[Any]) -> None:
    """Waits for what this thread asked of the devices of these values."""
    for device in _devices(values):
        kind = getattr(torch, device.type)
        if hasattr(kind, "current_stream"):
            kind.current_stream(device).synchronize()
        else:
            kind.synchronize()


def synchronize(values: Iterable[Any]) -> None:
    """Waits for all that anybody asked of the devices of these values."""
    for device in _devices(values):
        kind = getattr(torch, device.type)
        kind.synchronize(*(() if device.type == "mps" else (device,)))


def _devices(values: Iterable[Any]) -> set[torch.device]:
    found = {v.device for v in values if isinstance(v, Tensor)}
    return {device for device in found if device.type not in _ALWAYS_THERE}


def write(target: Any, source: Any) -> None:
    """The bytes of one array or tensor over those of another, as many; where both lie."""
    _bytes(target).copy_(_bytes(source))


def _bytes(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        value = as_tensor(value.reshape(-1).view(np.uint8), U8)
    flat: Tensor = value.reshape(-1).view(torch.uint8)
    return flat


def from_dlpack(data: Any) -> Tensor:
    """A tensor over the memory of whatever has `__dlpack__`, or of a capsule."""
    if isinstance(data, Tensor):
        return plain(data)
    try:
        return plain(imported(data))
    except SardonyxError:
        raise
    except Exception as error:  # torch's own, or whatever another library's tensor raises
        said = str(error).partition("\n")[0]
        raise ValueFault(f"{type(data).__name__} is no DLPack tensor for torch: {said}") from None


def given(tensor: Tensor, stream: Any, wishes: dict[str, Any]) -> Any:
    """A DLPack capsule of a tensor, as the keywords of `__dlpack__` want it."""
    with torch.cuda.device(
        tensor.device if tensor.is_cuda else -1
    ):  # which torch wants to be the current one
        return tensor.__dlpack__(stream=stream, **wishes)


class _Memory:
    """Bytes at an address of CUDA's, in the form in which torch takes other libraries' memory."""

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
    """A tensor of the bytes at an address of a device, which `owner`, or the caller, keeps."""
    device = device_of(name)
    if device.type != "cuda":
        raise ValueFault(
            f"memory of {name} is not known by its address here",
            hint="bind an OrtValue: OrtValue.from_dlpack(tensor)",
        )
    if not n_bytes:
        return torch.empty(0, dtype=torch.uint8, device=device)
    try:
        made = torch.as_tensor(_Memory(pointer, n_bytes, owner), device=device)
    except (RuntimeError, ValueError) as error:  # torch asks the driver whose memory it is
        said = str(error).partition("\n")[0]
        raise ValueFault(f"there is no memory of {name} at {pointer:#x}: {said}") from None
    if made.data_ptr() != pointer:
        raise ValueFault(f"the memory at {pointer:#x} is not on {name}")
    return made


def owner_of(tensor: Tensor) -> Owner:
    """What tensors over the same memory have in common."""
    return _space(tensor.device), tensor.untyped_storage().data_ptr()


def bounds(tensor: Tensor) -> tuple[str, int, int]:
    """Device, address of the first byte, and of the one behind the last."""
    begin, size = tensor.data_ptr(), tensor.nbytes
    if size and not tensor.is_contiguous():
        steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        size = (steps + 1) * tensor.element_size()
    return _space(tensor.device), begin, begin + size


@cache
def _space(device: torch.device) -> str:
    """What addresses of a device mean something in."""
    return f"{device.type}:{device.index or 0}"


def as_tensors(values: Sequence[Any]) -> list[Any]:
    """Arrays as tensors of torch over the same memory, where it has their type."""
    return [_as_tensor(v) for v in values]


def _as_tensor(value: Any) -> Any:
    if isinstance(value, list):
        return as_tensors(value)
    if not isinstance(value, np.ndarray):
        return value
    dtype = by_numpy(value.dtype)
    return as_tensor(value, dtype) if dtype in TORCH else value


def new_stream(name: str) -> Any:
    """A stream of a GPU."""
    return torch.cuda.Stream(device_of(name))  # type: ignore[no-untyped-call]


def on_stream(stream: Any) -> Any:
    """Where what is asked of the device goes to a stream."""
    return torch.cuda.stream(stream)


def gpus() -> list[tuple[int, dict[str, str]]]:
    """The PCI id of each GPU, and what is known of it; none where CUDA does not start."""
    try:
        return [_gpu(n) for n in range(torch.cuda.device_count())]
    except (RuntimeError, AssertionError):  # a driver that is too old, a device that is taken
        return []


def _gpu(number: int) -> tuple[int, dict[str, str]]:
    known: Any = torch.cuda.get_device_properties(number)
    about = {
        "name": str(known.name),
        "total_memory_bytes": str(known.total_memory),
        "compute_capability": f"{known.major}.{known.minor}",
    }
    if not hasattr(known, "pci_bus_id"):
        return 0, about
    domain = getattr(known, "pci_domain_id", 0)
    place = f"{domain:04x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0"
    about["pci"] = place
    try:
        with open(f"/sys/bus/pci/devices/{place}/device", encoding="ascii") as file:
            return int(file.read(), 16), about
    except (OSError, ValueError):
        return 0, about

"""OrtEpDevice and OrtHardwareDevice: the CPU of this machine, and the GPUs of torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from sardonyx.base.records import field, frozen
from sardonyx.errors import InvalidProtobuf, ValueFault
from sardonyx.ort.allocators import OrtMemoryInfo
from sardonyx.ort.device import device_values, get_vendor_id_for_device_type
from sardonyx.ort.device_enums import (
    OrtAllocatorType,
    OrtCompiledModelCompatibility,
    OrtDeviceMemoryType,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from sardonyx.ort.enums import OrtDeviceVendorId
from sardonyx.providers.probe import cuda_may_work

_CPU_INFO = "/proc/cpuinfo"
# By vendor_id (x86) or CPU implementer (ARM) of /proc/cpuinfo: name and PCI id.
_VENDORS = {
    "AuthenticAMD": ("AMD", 0x1022),  # of its CPUs; OrtDeviceVendorId.AMD is that of its GPUs
    "GenuineIntel": ("Intel", OrtDeviceVendorId.INTEL),
    "0x41": ("ARM", OrtDeviceVendorId.ARM),
}


@frozen
class OrtHardwareDevice:
    """A CPU or GPU, as the system describes it."""

    type: OrtHardwareDeviceType
    vendor_id: int
    vendor: str
    device_id: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


class OrtSyncStream:
    """A stream of a GPU."""

    def __init__(self, stream: Any = None) -> None:
        if stream is None:
            raise ValueFault(
                "a stream must be created by create_sync_stream of a GPU's OrtEpDevice"
            )
        self._stream = stream

    def get_handle(self) -> int:
        """Return the handle of the CUDA stream."""
        return int(self._stream.cuda_stream)


@frozen
class OrtEpDevice:
    """A provider on a device."""

    ep_name: str
    ep_vendor: str
    device: OrtHardwareDevice
    ep_metadata: dict[str, str] = field(default_factory=dict)
    ep_options: dict[str, str] = field(default_factory=dict)

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> OrtMemoryInfo | None:
        """Return the device's memory, or its host-accessible (pinned) memory; None for the CPU."""
        if self._number is None:
            return None
        is_own = OrtDeviceMemoryType(memory_type) is OrtDeviceMemoryType.DEFAULT
        name = "Cuda" if is_own else "CudaPinned"
        kind = OrtAllocatorType.ORT_DEVICE_ALLOCATOR
        return OrtMemoryInfo(name, kind, self._number, OrtMemType.DEFAULT)

    def create_sync_stream(self) -> OrtSyncStream:
        """Return a new stream of the device; the CPU has none."""
        if self._number is None:
            raise ValueFault(f"{self.ep_name} runs on the CPU, which has no streams")
        name = f"cuda:{self._number}"
        return OrtSyncStream(device_values(name).new_stream(name))

    @property
    def _number(self) -> int | None:
        """The index of the GPU; None for the CPU."""
        is_gpu = self.device.type is OrtHardwareDeviceType.GPU
        return int(self.ep_options["device_id"]) if is_gpu else None


@frozen
class OrtEpAssignedNode:
    """A node that is assigned to a provider."""

    name: str
    domain: str
    op_type: str


@frozen
class OrtEpAssignedSubgraph:
    """A subgraph that is assigned to a provider."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...] = ()

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """Return the nodes, in order."""
        return list(self.nodes)


class OrtEpContextData:
    """Data compiled by a provider, passed to a callback that stores it."""

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data).cast("B")

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._data.nbytes

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes from an offset; None: all up to the end."""
        end = self.size if length is None else offset + length
        if not 0 <= offset <= end <= self.size:
            raise ValueFault(f"bytes {offset} to {end} are out of range: the size is {self.size}")
        return bytes(self._data[offset:end])


class OrtEpContextDataBuffer:
    """The buffer that a callback fills with data compiled by a provider earlier."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._data: bytearray | None = None

    @property
    def max_size(self) -> int:
        """The largest size that may be allocated, in bytes."""
        return self._max_size

    @property
    def is_allocated(self) -> bool:
        """Whether `allocate` was called."""
        return self._data is not None

    @property
    def size(self) -> int:
        """The allocated size in bytes."""
        return 0 if self._data is None else len(self._data)

    def allocate(self, size: int) -> None:
        """Allocate this many bytes; only once."""
        if self._data is not None or not 0 <= size <= self.max_size:
            raise ValueFault(
                f"allocate accepts one call with at most {self.max_size} bytes, got {size}"
            )
        self._data = bytearray(size)

    def write(self, data: Any, offset: int = 0) -> None:
        """Write bytes at an offset."""
        view = memoryview(data).cast("B")
        if self._data is None or not 0 <= offset <= self.size - view.nbytes:
            raise ValueFault(f"{view.nbytes} bytes at {offset} do not fit into {self.size}")
        self._data[offset : offset + view.nbytes] = view


@cache
def get_hardware_devices() -> list[OrtHardwareDevice]:
    """Return the hardware that sessions can use."""
    vendor, number = _vendor()
    return [OrtHardwareDevice(OrtHardwareDeviceType.CPU, number, vendor), *_gpus()]


def _gpus() -> list[OrtHardwareDevice]:
    """Return the NVIDIA GPUs, in the order of CUDA's indices."""
    if not cuda_may_work():
        return []
    kind, vendor = OrtHardwareDeviceType.GPU, OrtDeviceVendorId.NVIDIA
    return [
        OrtHardwareDevice(kind, int(vendor), "NVIDIA", number, metadata)
        for number, metadata in device_values("cuda").gpus()
    ]


def _vendor() -> tuple[str, int]:
    try:
        with open(_CPU_INFO, encoding="utf-8", errors="replace") as file:
            text = file.read(4096)
    except OSError:
        return "", 0
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("vendor_id", "CPU implementer"):
            return _VENDORS.get(value.strip(), (value.strip(), 0))
    return "", 0


@cache
def get_ep_devices() -> list[OrtEpDevice]:
    """Return each provider with each device that it runs on; the CPU first."""
    from sardonyx.providers import CPU, CUDA
    from sardonyx.version import __version__

    metadata = {"version": __version__}
    cpu, *gpus = get_hardware_devices()
    return [
        OrtEpDevice(CPU, "Sardonyx", cpu, metadata),
        *(
            OrtEpDevice(CUDA, "Sardonyx", gpu, metadata, {"device_id": str(number)})
            for number, gpu in enumerate(gpus)
        ),
    ]


def ep_device_of(device: str) -> OrtEpDevice:
    """Return the OrtEpDevice of a device name such as "cuda:0"; others map to the CPU."""
    cpu, *gpus = get_ep_devices()
    number = device.partition(":")[2] or "0" if device.startswith("cuda") else None
    return next((gpu for gpu in gpus if gpu.ep_options["device_id"] == number), cpu)


def memory_of(device: str) -> OrtMemoryInfo:
    """Return the memory of values on the device of this name."""
    kind, _, number = device.partition(":")
    allocator, default = OrtAllocatorType.ORT_ARENA_ALLOCATOR, OrtMemType.DEFAULT
    if not number:  # the host, also as torch's device "cpu"
        return OrtMemoryInfo("Cpu", allocator, 0, default)
    if kind == "cuda":
        return OrtMemoryInfo("Cuda", allocator, int(number), default)
    gpu, memory = OrtMemoryInfoDeviceType.GPU, OrtDeviceMemoryType.DEFAULT
    vendor = get_vendor_id_for_device_type(kind) or 0
    return OrtMemoryInfo.create_v2(kind, gpu, vendor, int(number), memory, 0, allocator)


def get_hardware_device_ep_incompatibility_details(
    ep_name: str, hardware_device: OrtHardwareDevice
) -> dict[str, Any]:
    """Return why a provider cannot use a device, as OrtDeviceEpIncompatibilityReason bits."""
    if ep_name not in {d.ep_name for d in get_ep_devices()}:
        raise ValueFault(f"there is no provider {ep_name!r}")
    return {"reasons_bitmask": 0, "notes": None, "error_code": 0}


def get_model_compatibility_for_ep_devices(
    ep_devices: Sequence[OrtEpDevice], compatibility_info: str
) -> OrtCompiledModelCompatibility:
    """Return EP_NOT_APPLICABLE: no provider here stores compiled data in models."""
    if not ep_devices:
        raise ValueFault("the list of devices is empty")
    if not isinstance(compatibility_info, str):
        kind = type(compatibility_info).__name__
        raise TypeError(f"compatibility_info must be a string, got {kind}")
    return OrtCompiledModelCompatibility.EP_NOT_APPLICABLE


def get_compatibility_info_from_model(model_path: str, ep_type: str) -> str | None:
    """Return what a provider wrote into a model's metadata when it compiled it; None: nothing."""
    if not os.path.exists(model_path):
        raise ValueFault(f"Load model {model_path} failed. File doesn't exist")
    return _compatibility(model_path, ep_type)


def get_compatibility_info_from_model_bytes(model_data: Any, ep_type: str) -> str | None:
    """Return the same as `get_compatibility_info_from_model` for a model in memory."""
    return _compatibility(model_data, ep_type)


def _compatibility(model: Any, ep_type: str) -> str | None:
    from sardonyx.load import read_record
    from sardonyx.load.source import read_model

    if not ep_type:
        raise ValueFault("the name of a provider is empty")
    try:
        metadata = dict(read_record(read_model(model)).metadata)
    except InvalidProtobuf as error:  # a RuntimeError, as in onnxruntime
        raise ValueFault(error.what) from None
    return metadata.get(f"ep_compatibility_info.{ep_type}")

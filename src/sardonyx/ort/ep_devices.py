"""Devices that providers run on: the CPU of this machine, and GPUs that torch can use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from sardonyx.base.records import field, frozen
from sardonyx.errors import NoSuchFile, ValueFault
from sardonyx.ort.allocators import OrtMemoryInfo
from sardonyx.ort.device import device_values, get_vendor_id_for_device_type
from sardonyx.ort.enums import (
    OrtAllocatorType,
    OrtCompiledModelCompatibility,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from sardonyx.providers.probe import cuda_may_work

_CPU_INFO = "/proc/cpuinfo"
_VENDORS = {
    "AuthenticAMD": ("AMD", 0x1022),
    "GenuineIntel": ("Intel", OrtDeviceVendorId.INTEL),
    "0x41": ("ARM", OrtDeviceVendorId.ARM),
}


@frozen
class OrtHardwareDevice:
    """A piece of hardware, with what the system says of it."""

    type: OrtHardwareDeviceType
    vendor_id: int
    vendor: str
    device_id: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


class OrtSyncStream:
    """A queue of a device: what it is given is done in order. The CPU has none."""

    def __init__(self, stream: Any = None) -> None:
        if stream is None:
            raise ValueFault("a stream is made by create_sync_stream of a GPU's OrtEpDevice")
        self._stream = stream

    def get_handle(self) -> int:
        """The address of the device's own stream."""
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
        """The device's own memory, or the host's that it reaches; None for the CPU.

        The CPU has no other memory than the process.
        """
        if self._number is None:
            return None
        is_own = OrtDeviceMemoryType(memory_type) is OrtDeviceMemoryType.DEFAULT
        name = "Cuda" if is_own else "CudaPinned"
        kind = OrtAllocatorType.ORT_DEVICE_ALLOCATOR
        return OrtMemoryInfo(name, kind, self._number, OrtMemType.DEFAULT)

    def create_sync_stream(self) -> OrtSyncStream:
        """A new stream of the device, of which the CPU has none."""
        if self._number is None:
            raise ValueFault(f"{self.ep_name} runs on the CPU, which has no streams")
        name = f"cuda:{self._number}"
        return OrtSyncStream(device_values(name).new_stream(name))

    @property
    def _number(self) -> int | None:
        """Which GPU it is; None for the CPU."""
        is_gpu = self.device.type is OrtHardwareDeviceType.GPU
        return int(self.ep_options["device_id"]) if is_gpu else None


@frozen
class OrtEpAssignedNode:
    """A node that a provider took."""

    name: str
    domain: str
    op_type: str


@frozen
class OrtEpAssignedSubgraph:
    """Nodes that a provider took as one."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...] = ()

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """The nodes, in order."""
        return list(self.nodes)


class OrtEpContextData:
    """What a provider compiled, as a callback that stores it is shown it."""

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data).cast("B")

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return self._data.nbytes

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """A part of it, to the end unless a length is given."""
        end = self.size if length is None else offset + length
        if not 0 <= offset <= end <= self.size:
            raise ValueFault(f"bytes {offset} to {end} are not all among {self.size}")
        return bytes(self._data[offset:end])


class OrtEpContextDataBuffer:
    """Where a callback puts what a provider compiled earlier."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._data: bytearray | None = None

    @property
    def max_size(self) -> int:
        """The most bytes that may be allocated."""
        return self._max_size

    @property
    def is_allocated(self) -> bool:
        """Whether `allocate` was called."""
        return self._data is not None

    @property
    def size(self) -> int:
        """Bytes that were allocated."""
        return 0 if self._data is None else len(self._data)

    def allocate(self, size: int) -> None:
        """Makes room for so many bytes, once."""
        if self._data is not None or not 0 <= size <= self.max_size:
            raise ValueFault(f"{size} bytes are asked for, once, of at most {self.max_size}")
        self._data = bytearray(size)

    def write(self, data: Any, offset: int = 0) -> None:
        """Puts bytes at a place."""
        view = memoryview(data).cast("B")
        if self._data is None or not 0 <= offset <= self.size - view.nbytes:
            raise ValueFault(f"{view.nbytes} bytes at {offset} do not fit into {self.size}")
        self._data[offset : offset + view.nbytes] = view


@cache
def get_hardware_devices() -> list[OrtHardwareDevice]:
    """The hardware that sessions can use."""
    vendor, number = _vendor()
    return [OrtHardwareDevice(OrtHardwareDeviceType.CPU, number, vendor), *_gpus()]


def _gpus() -> list[OrtHardwareDevice]:
    """GPUs of NVIDIA's in the order in which CUDA numbers them."""
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
    """Each provider with each device that it runs on; the CPU first."""
    from sardonyx.providers import CPU, CUDA
    from sardonyx.version import __version__

    about = {"version": __version__}
    cpu, *gpus = get_hardware_devices()
    return [
        OrtEpDevice(CPU, "Sardonyx", cpu, about),
        *(
            OrtEpDevice(CUDA, "Sardonyx", gpu, about, {"device_id": str(number)})
            for number, gpu in enumerate(gpus)
        ),
    ]


def ep_device_of(device: str) -> OrtEpDevice:
    """The listed device of a name that values' homes go by; the CPU's for those not listed."""
    cpu, *gpus = get_ep_devices() if device.startswith("cuda") else get_ep_devices()[:1]
    number = device.partition(":")[2] or "0"
    return next((gpu for gpu in gpus if gpu.ep_options["device_id"] == number), cpu)


def memory_of(device: str) -> OrtMemoryInfo:
    """The memory that values lie in whose homes go by the name of a device."""
    kind, _, number = device.partition(":")
    how, plain = OrtAllocatorType.ORT_ARENA_ALLOCATOR, OrtMemType.DEFAULT
    if not number:  # torch's CPU device is the host's memory as well
        return OrtMemoryInfo("Cpu", how, 0, plain)
    if kind == "cuda":
        return OrtMemoryInfo("Cuda", how, int(number), plain)
    gpu, memory = OrtMemoryInfoDeviceType.GPU, OrtDeviceMemoryType.DEFAULT
    vendor = get_vendor_id_for_device_type(kind) or 0
    return OrtMemoryInfo.create_v2(kind, gpu, vendor, int(number), memory, 0, how)


def get_hardware_device_ep_incompatibility_details(
    ep_name: str, hardware_device: OrtHardwareDevice
) -> dict[str, Any]:
    """Why a provider cannot use a device: bits of OrtDeviceEpIncompatibilityReason."""
    if ep_name not in {d.ep_name for d in get_ep_devices()}:
        raise ValueFault(f"there is no provider {ep_name!r}")
    return {"reasons_bitmask": 0, "notes": None, "error_code": 0}


def get_model_compatibility_for_ep_devices(
    ep_devices: Sequence[OrtEpDevice], compatibility_info: str
) -> OrtCompiledModelCompatibility:
    """Whether what a provider compiled suits its devices; ours leaves nothing that could not."""
    if not ep_devices:
        raise ValueFault("one device at least is asked about")
    return OrtCompiledModelCompatibility.EP_NOT_APPLICABLE


def get_compatibility_info_from_model(model_path: str, ep_type: str) -> str | None:
    """What a provider wrote into a model's metadata when it compiled it; None if nothing."""
    if not os.path.exists(model_path):
        raise NoSuchFile(f"Load model {model_path} failed. File doesn't exist")
    return _compatibility(model_path, ep_type)


def get_compatibility_info_from_model_bytes(model_data: Any, ep_type: str) -> str | None:
    """`get_compatibility_info_from_model` of a model in memory."""
    return _compatibility(model_data, ep_type)


def _compatibility(model: Any, ep_type: str) -> str | None:
    from sardonyx.load import read_record
    from sardonyx.load.source import read_model

    if not ep_type:
        raise ValueFault("the name of a provider is empty")
    metadata = dict(read_record(read_model(model)).metadata)
    return metadata.get(f"ep_compatibility_info.{ep_type}")

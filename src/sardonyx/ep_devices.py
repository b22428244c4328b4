"""Devices that providers run on: there is one, the CPU of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sardonyx.allocators import OrtMemoryInfo
from sardonyx.enums import (
    OrtAllocatorType,
    OrtCompiledModelCompatibility,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtHardwareDeviceType,
    OrtMemType,
)
from sardonyx.errors import NoSuchFile, ValueFault

_CPU_INFO = "/proc/cpuinfo"
_VENDORS = {
    "AuthenticAMD": ("AMD", 0x1022),
    "GenuineIntel": ("Intel", OrtDeviceVendorId.INTEL),
    "0x41": ("ARM", OrtDeviceVendorId.ARM),
}


@dataclass(frozen=True, slots=True)
class OrtHardwareDevice:
    """A piece of hardware, with what the system says of it."""

    type: OrtHardwareDeviceType
    vendor_id: int
    vendor: str
    device_id: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


class OrtSyncStream:
    """A queue of a device. The CPU has none, so that none is ever made."""

    def __init__(self) -> None:
        raise ValueFault("streams belong to other devices than the CPU")

    def get_handle(self) -> int:
        """The address of the device's own stream."""
        raise ValueFault("the CPU has no streams")


@dataclass(frozen=True, slots=True)
class OrtEpDevice:
    """A provider on a device."""

    ep_name: str
    ep_vendor: str
    device: OrtHardwareDevice
    ep_metadata: dict[str, str] = field(default_factory=dict)
    ep_options: dict[str, str] = field(default_factory=dict)

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> OrtMemoryInfo | None:
        """The device's own memory: None for the CPU, which has no other than the process."""
        return None

    def create_sync_stream(self) -> OrtSyncStream:
        """A stream of the device, of which the CPU has none."""
        raise ValueFault(f"{self.ep_name} runs on the CPU, which has no streams")


@dataclass(frozen=True, slots=True)
class OrtEpAssignedNode:
    """A node that a provider took."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True, slots=True)
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
    return [OrtHardwareDevice(OrtHardwareDeviceType.CPU, number, vendor)]


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
    """Each provider with each device that it runs on."""
    from sardonyx import __version__
    from sardonyx.providers import CPU

    return [
        OrtEpDevice(name, "Sardonyx", device, {"version": __version__})
        for name in (CPU,)
        for device in get_hardware_devices()
    ]


def cpu_memory() -> OrtMemoryInfo:
    """The memory that inputs and outputs lie in."""
    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)


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

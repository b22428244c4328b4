"""OrtMemoryInfo, OrtArenaCfg, and the limit of the block pool that sessions share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.ort.device import OrtDevice
from sardonyx.ort.device_enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from sardonyx.ort.enums import OrtDeviceVendorId

_NAMES: Final = (
    "Cpu", "Cuda", "CudaPinned", "DML", "Hip", "HipPinned", "QnnHtpShared", "WebGPU_Buffer",
)  # fmt: skip
_VENDORS: Final = {
    "Cuda": OrtDeviceVendorId.NVIDIA,
    "CudaPinned": OrtDeviceVendorId.NVIDIA,
    "DML": OrtDeviceVendorId.MICROSOFT,
    "Hip": OrtDeviceVendorId.AMD,
    "HipPinned": OrtDeviceVendorId.AMD,
}
_N_POSITIONAL: Final = 4  # options of OrtArenaCfg that may be passed by position
_shared_limit_bytes = 0


class OrtArenaCfg:
    """Options of an arena. Arenas here have the planned size of a run, so only `max_mem` counts."""

    # The defaults, which are also the least values.
    max_mem: int = 0
    arena_extend_strategy: int = -1
    initial_chunk_size_bytes: int = -1
    max_dead_bytes_per_chunk: int = -1
    initial_growth_chunk_size_bytes: int = -1
    max_power_of_two_extend_bytes: int = -1

    def __init__(self, max_mem: int | Mapping[str, int] = 0, *others: int) -> None:
        """Set four options by position, or any by a mapping; max_mem 0 and -1: the default."""
        names = list(OrtArenaCfg.__annotations__)
        if len(others) >= _N_POSITIONAL:
            raise TypeError(
                f"OrtArenaCfg takes {_N_POSITIONAL} positional arguments, got {1 + len(others)}"
            )
        options: Mapping[str, int]
        if isinstance(max_mem, Mapping):
            options = max_mem
        else:
            options = dict(zip(names, (max_mem, *others), strict=False))
        for name, value in options.items():
            if name not in names:
                known = ", ".join(names)
                raise InvalidArgument(f"OrtArenaCfg has no option {name!r}; it has {known}")
            least = getattr(OrtArenaCfg, name)
            if not isinstance(value, int) or value < least:
                raise InvalidArgument(
                    f"{name} of an OrtArenaCfg must be a number from {least} on, got {value!r}"
                )
            setattr(self, name, value)


class OrtMemoryInfo:
    """A kind of memory: its device and allocator."""

    __slots__ = (
        "allocator_type",
        "device_id",
        "device_mem_type",
        "device_type",
        "device_vendor_id",
        "mem_type",
        "name",
    )

    def __init__(
        self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType
    ) -> None:
        if name not in _NAMES:
            raise InvalidArgument(f"there is no memory {name!r}; the names are {', '.join(_NAMES)}")
        self.name = name
        self.allocator_type = OrtAllocatorType(allocator_type)
        self.device_id = device_id
        self.mem_type = OrtMemType(mem_type)
        is_cpu = name == "Cpu"
        self.device_type = OrtMemoryInfoDeviceType.CPU if is_cpu else OrtMemoryInfoDeviceType.GPU
        kinds = OrtDeviceMemoryType
        self.device_mem_type = kinds.HOST_ACCESSIBLE if name.endswith("Pinned") else kinds.DEFAULT
        self.device_vendor_id = int(_VENDORS.get(name, OrtDeviceVendorId.NONE))

    @staticmethod
    def create_v2(  # noqa: PLR0913 - onnxruntime's arguments
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """Return memory of any name; blocks are aligned to 64 bytes whatever `alignment` is."""
        info = OrtMemoryInfo("Cpu", allocator_type, device_id, OrtMemType.DEFAULT)
        info.name = name
        info.device_type = OrtMemoryInfoDeviceType(device_type)
        info.device_mem_type = OrtDeviceMemoryType(device_mem_type)
        info.device_vendor_id = vendor_id
        return info

    def _device(self) -> OrtDevice:
        """Return the device of the memory; host-accessible memory belongs to the CPU."""
        is_host = self.device_mem_type is OrtDeviceMemoryType.HOST_ACCESSIBLE
        kind = OrtMemoryInfoDeviceType.CPU if is_host else self.device_type
        return OrtDevice(int(kind), 0, self.device_vendor_id, self.device_id)


def create_and_register_allocator(
    mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None
) -> None:
    """Limit the block pool of sessions created later with session.use_env_allocators to `max_mem`.

    The pool exists without being registered. A run of such a session whose arena and outputs
    would exceed the limit fails, as with sardonyx.max_arena_bytes.
    """
    if not isinstance(mem_info, OrtMemoryInfo):
        raise TypeError(f"mem_info must be an OrtMemoryInfo, got {type(mem_info).__name__}")
    if arena_cfg is not None and not isinstance(arena_cfg, OrtArenaCfg):
        raise TypeError(f"arena_cfg must be an OrtArenaCfg, got {type(arena_cfg).__name__}")
    if mem_info.device_type is not OrtMemoryInfoDeviceType.CPU:
        raise NotImplemented(
            f"sessions share memory of the CPU only, not {mem_info.name}",
            hint='describe it as OrtMemoryInfo("Cpu", ...)',
        )
    global _shared_limit_bytes
    _shared_limit_bytes = 0 if arena_cfg is None else arena_cfg.max_mem


def create_and_register_allocator_v2(
    provider_type: str,
    mem_info: OrtMemoryInfo,
    options: Mapping[str, Any],
    arena_cfg: OrtArenaCfg | None = None,
) -> None:
    """`create_and_register_allocator` for a provider; only the CPU provider has shared memory."""
    if provider_type != "CPUExecutionProvider":
        raise NotImplemented(f"{provider_type} has no memory that sessions share")
    create_and_register_allocator(mem_info, arena_cfg)


def shared_limit_bytes() -> int:
    """Return the registered limit; 0 if there is none."""
    return _shared_limit_bytes

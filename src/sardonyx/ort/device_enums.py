"""Enumerations of onnxruntime's interface for devices, memory and compiled models.

Apart from `enums.py`, as most programs need none of them and an enumeration takes 0.1 ms to create.
"""

from __future__ import annotations

from sardonyx.base.enums import Named


class OrtAllocatorType(Named):
    """Kinds of allocators."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(Named):
    """What memory is used for."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtSparseFormat(Named):
    """Layouts of sparse tensors."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class OrtMemoryInfoDeviceType(Named):
    """Kinds of devices that memory belongs to."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtDeviceMemoryType(Named):
    """Whether the host can access a device's memory."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtHardwareDeviceType(Named):
    """Kinds of hardware."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtCompileApiFlags(Named):
    """Errors that compiling to a file raises."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class ArenaExtendStrategy(Named):
    """How an arena grows; without effect, arenas have the planned size of a run."""

    kNextPowerOfTwo = 0  # noqa: N815 - onnxruntime's name
    kSameAsRequested = 1  # noqa: N815


class OrtCompiledModelCompatibility(Named):
    """Whether a compiled model is compatible with a device."""

    EP_NOT_APPLICABLE = 0
    EP_SUPPORTED_OPTIMAL = 1
    EP_SUPPORTED_PREFER_RECOMPILATION = 2
    EP_UNSUPPORTED = 3


class OrtDeviceEpIncompatibilityReason(Named):
    """Why a provider cannot use a device; bit flags."""

    NONE = 0
    DRIVER_INCOMPATIBLE = 1
    DEVICE_INCOMPATIBLE = 2
    MISSING_DEPENDENCY = 4
    UNKNOWN = -2147483648

"""The enumerations of onnxruntime's interface, with its names and values."""

from __future__ import annotations

from sardonyx.base.enums import Named
from sardonyx.passes.options import GraphOptimizationLevel as GraphOptimizationLevel


class ExecutionMode(Named):
    """Whether independent nodes run in parallel."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(Named):
    """How the execution order of nodes is chosen."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


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


class OrtExecutionProviderDevicePolicy(Named):
    """How a provider is selected if none is named."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


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


class OrtDeviceVendorId(Named):
    """PCI ids of hardware vendors."""

    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


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

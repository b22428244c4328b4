"""Enumerations of onnxruntime's interface for session options and device names."""

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


class OrtExecutionProviderDevicePolicy(Named):
    """How a provider is selected if none is named."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


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

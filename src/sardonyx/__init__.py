"""Sardonyx, an ONNX runtime with onnxruntime's interface: `import sardonyx as ort`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sardonyx.base.import_cache import import_cache

with import_cache(__spec__):
    import sardonyx.preload  # noqa: F401 - it imports the ops of most models
    from sardonyx.errors import SardonyxError
    from sardonyx.ort.enums import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        OrtDeviceVendorId,
        OrtExecutionProviderDevicePolicy,
    )
    from sardonyx.ort.environment import (
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_available_providers,
        get_build_info,
        get_device,
        get_version_string,
        has_collective_ops,
        preload_dlls,
        print_debug_info,
        register_execution_provider_library,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
        set_seed,
        unregister_execution_provider_library,
    )
    from sardonyx.ort.options import RunOptions, SessionOptions
    from sardonyx.session.inference import InferenceSession
    from sardonyx.version import ORT_VERSION as ORT_VERSION
    from sardonyx.version import __version__ as __version__

if TYPE_CHECKING:
    from sardonyx import capi as capi
    from sardonyx.custom_ops.native_op import native_op
    from sardonyx.custom_ops.python_op import custom_op, unregister_custom_op
    from sardonyx.ort.adapters import AdapterFormat, LoraAdapter
    from sardonyx.ort.allocators import (
        OrtArenaCfg,
        OrtMemoryInfo,
        create_and_register_allocator,
        create_and_register_allocator_v2,
    )
    from sardonyx.ort.device import OrtDevice
    from sardonyx.ort.device_enums import (
        OrtAllocatorType,
        OrtCompileApiFlags,
        OrtDeviceMemoryType,
        OrtHardwareDeviceType,
        OrtMemoryInfoDeviceType,
        OrtMemType,
        OrtSparseFormat,
    )
    from sardonyx.ort.ep_devices import (
        OrtEpAssignedNode,
        OrtEpAssignedSubgraph,
        OrtEpContextData,
        OrtEpContextDataBuffer,
        OrtEpDevice,
        OrtHardwareDevice,
        OrtSyncStream,
        get_ep_devices,
    )
    from sardonyx.ort.node_arg import ModelMetadata, NodeArg
    from sardonyx.ort.ort_value import OrtValue
    from sardonyx.ort.ort_value_vector import copy_tensors
    from sardonyx.ort.sparse_tensor import SparseTensor
    from sardonyx.providers import register_provider, unregister_provider
    from sardonyx.session.io_binding import IOBinding, SessionIOBinding
    from sardonyx.session.model_compiler import ModelCompiler, OrtExternalInitializerInfo
    from sardonyx.weights.layouts import PrepackedWeightsContainer
    from sardonyx.weights.loading import DataLoader, LoaderManager, WeightReference

# Public names whose modules few programs need: imported on first access (PEP 562).
_LAZY: Final = {
    "AdapterFormat": "sardonyx.ort.adapters",
    "DataLoader": "sardonyx.weights.loading",
    "IOBinding": "sardonyx.session.io_binding",
    "LoaderManager": "sardonyx.weights.loading",
    "LoraAdapter": "sardonyx.ort.adapters",
    "ModelCompiler": "sardonyx.session.model_compiler",
    "ModelMetadata": "sardonyx.ort.node_arg",
    "NodeArg": "sardonyx.ort.node_arg",
    "OrtAllocatorType": "sardonyx.ort.device_enums",
    "OrtArenaCfg": "sardonyx.ort.allocators",
    "OrtCompileApiFlags": "sardonyx.ort.device_enums",
    "OrtDevice": "sardonyx.ort.device",
    "OrtDeviceMemoryType": "sardonyx.ort.device_enums",
    "OrtEpAssignedNode": "sardonyx.ort.ep_devices",
    "OrtEpAssignedSubgraph": "sardonyx.ort.ep_devices",
    "OrtEpContextData": "sardonyx.ort.ep_devices",
    "OrtEpContextDataBuffer": "sardonyx.ort.ep_devices",
    "OrtEpDevice": "sardonyx.ort.ep_devices",
    "OrtExternalInitializerInfo": "sardonyx.session.model_compiler",
    "OrtHardwareDevice": "sardonyx.ort.ep_devices",
    "OrtHardwareDeviceType": "sardonyx.ort.device_enums",
    "OrtMemType": "sardonyx.ort.device_enums",
    "OrtMemoryInfo": "sardonyx.ort.allocators",
    "OrtMemoryInfoDeviceType": "sardonyx.ort.device_enums",
    "OrtSparseFormat": "sardonyx.ort.device_enums",
    "OrtSyncStream": "sardonyx.ort.ep_devices",
    "OrtValue": "sardonyx.ort.ort_value",
    "PrepackedWeightsContainer": "sardonyx.weights.layouts",
    "SessionIOBinding": "sardonyx.session.io_binding",
    "SparseTensor": "sardonyx.ort.sparse_tensor",
    "WeightReference": "sardonyx.weights.loading",
    "copy_tensors": "sardonyx.ort.ort_value_vector",
    "create_and_register_allocator": "sardonyx.ort.allocators",
    "create_and_register_allocator_v2": "sardonyx.ort.allocators",
    "custom_op": "sardonyx.custom_ops.python_op",
    "get_ep_devices": "sardonyx.ort.ep_devices",
    "native_op": "sardonyx.custom_ops.native_op",
    "register_provider": "sardonyx.providers",
    "unregister_custom_op": "sardonyx.custom_ops.python_op",
    "unregister_provider": "sardonyx.providers",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        import importlib

        if name == "capi":
            return importlib.import_module("sardonyx.capi")
        if name not in _LAZY:
            raise AttributeError(f"module 'sardonyx' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
        return value


__all__: Final[list[str]] = [
    "AdapterFormat",
    "DataLoader",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "LoaderManager",
    "LoraAdapter",
    "ModelCompiler",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtCompileApiFlags",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtEpContextData",
    "OrtEpContextDataBuffer",
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtExternalInitializerInfo",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtSyncStream",
    "OrtValue",
    "PrepackedWeightsContainer",
    "RunOptions",
    "SardonyxError",
    "SessionIOBinding",
    "SessionOptions",
    "SparseTensor",
    "WeightReference",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "custom_op",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "native_op",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "register_provider",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_custom_op",
    "unregister_execution_provider_library",
    "unregister_provider",
]

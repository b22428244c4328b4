"""Sardonyx, an ONNX runtime with onnxruntime's interface: `import sardonyx as ort`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sardonyx.base.gc_pause import GcPause
from sardonyx.base.import_cache import import_cache

with GcPause(), import_cache(__spec__):
    import sardonyx.preload  # noqa: F401 - it imports the ops of most models
    from sardonyx.errors import SardonyxError as SardonyxError
    from sardonyx.ort.enums import ExecutionMode as ExecutionMode
    from sardonyx.ort.enums import ExecutionOrder as ExecutionOrder
    from sardonyx.ort.enums import GraphOptimizationLevel as GraphOptimizationLevel
    from sardonyx.ort.enums import OrtDeviceVendorId as OrtDeviceVendorId
    from sardonyx.ort.enums import (
        OrtExecutionProviderDevicePolicy as OrtExecutionProviderDevicePolicy,
    )
    from sardonyx.ort.environment import disable_telemetry_events as disable_telemetry_events
    from sardonyx.ort.environment import enable_telemetry_events as enable_telemetry_events
    from sardonyx.ort.environment import get_all_providers as get_all_providers
    from sardonyx.ort.environment import get_available_providers as get_available_providers
    from sardonyx.ort.environment import get_build_info as get_build_info
    from sardonyx.ort.environment import get_device as get_device
    from sardonyx.ort.environment import get_version_string as get_version_string
    from sardonyx.ort.environment import has_collective_ops as has_collective_ops
    from sardonyx.ort.environment import preload_dlls as preload_dlls
    from sardonyx.ort.environment import print_debug_info as print_debug_info
    from sardonyx.ort.environment import (
        register_execution_provider_library as register_execution_provider_library,
    )
    from sardonyx.ort.environment import set_default_logger_severity as set_default_logger_severity
    from sardonyx.ort.environment import (
        set_default_logger_verbosity as set_default_logger_verbosity,
    )
    from sardonyx.ort.environment import (
        set_global_thread_pool_sizes as set_global_thread_pool_sizes,
    )
    from sardonyx.ort.environment import set_seed as set_seed
    from sardonyx.ort.environment import (
        unregister_execution_provider_library as unregister_execution_provider_library,
    )
    from sardonyx.ort.options import RunOptions as RunOptions
    from sardonyx.ort.options import SessionOptions as SessionOptions
    from sardonyx.session.inference import InferenceSession as InferenceSession
    from sardonyx.version import ORT_VERSION as ORT_VERSION
    from sardonyx.version import __version__ as __version__

if TYPE_CHECKING:
    from sardonyx import capi as capi
    from sardonyx.custom_ops.native_op import native_op as native_op
    from sardonyx.custom_ops.python_op import custom_op as custom_op
    from sardonyx.custom_ops.python_op import unregister_custom_op as unregister_custom_op
    from sardonyx.ort.adapters import AdapterFormat as AdapterFormat
    from sardonyx.ort.adapters import LoraAdapter as LoraAdapter
    from sardonyx.ort.allocators import OrtArenaCfg as OrtArenaCfg
    from sardonyx.ort.allocators import OrtMemoryInfo as OrtMemoryInfo
    from sardonyx.ort.allocators import (
        create_and_register_allocator as create_and_register_allocator,
    )
    from sardonyx.ort.allocators import (
        create_and_register_allocator_v2 as create_and_register_allocator_v2,
    )
    from sardonyx.ort.device import OrtDevice as OrtDevice
    from sardonyx.ort.device_enums import OrtAllocatorType as OrtAllocatorType
    from sardonyx.ort.device_enums import OrtCompileApiFlags as OrtCompileApiFlags
    from sardonyx.ort.device_enums import OrtDeviceMemoryType as OrtDeviceMemoryType
    from sardonyx.ort.device_enums import OrtHardwareDeviceType as OrtHardwareDeviceType
    from sardonyx.ort.device_enums import OrtMemoryInfoDeviceType as OrtMemoryInfoDeviceType
    from sardonyx.ort.device_enums import OrtMemType as OrtMemType
    from sardonyx.ort.device_enums import OrtSparseFormat as OrtSparseFormat
    from sardonyx.ort.ep_devices import OrtEpAssignedNode as OrtEpAssignedNode
    from sardonyx.ort.ep_devices import OrtEpAssignedSubgraph as OrtEpAssignedSubgraph
    from sardonyx.ort.ep_devices import OrtEpContextData as OrtEpContextData
    from sardonyx.ort.ep_devices import OrtEpContextDataBuffer as OrtEpContextDataBuffer
    from sardonyx.ort.ep_devices import OrtEpDevice as OrtEpDevice
    from sardonyx.ort.ep_devices import OrtHardwareDevice as OrtHardwareDevice
    from sardonyx.ort.ep_devices import OrtSyncStream as OrtSyncStream
    from sardonyx.ort.ep_devices import get_ep_devices as get_ep_devices
    from sardonyx.ort.node_arg import ModelMetadata as ModelMetadata
    from sardonyx.ort.node_arg import NodeArg as NodeArg
    from sardonyx.ort.ort_value import OrtValue as OrtValue
    from sardonyx.ort.ort_value_vector import copy_tensors as copy_tensors
    from sardonyx.ort.sparse_tensor import SparseTensor as SparseTensor
    from sardonyx.providers import register_provider as register_provider
    from sardonyx.providers import unregister_provider as unregister_provider
    from sardonyx.session.io_binding import IOBinding as IOBinding
    from sardonyx.session.io_binding import SessionIOBinding as SessionIOBinding
    from sardonyx.session.model_compiler import ModelCompiler as ModelCompiler
    from sardonyx.session.model_compiler import (
        OrtExternalInitializerInfo as OrtExternalInitializerInfo,
    )
    from sardonyx.weights.layouts import PrepackedWeightsContainer as PrepackedWeightsContainer
    from sardonyx.weights.loading import DataLoader as DataLoader
    from sardonyx.weights.loading import LoaderManager as LoaderManager
    from sardonyx.weights.loading import WeightReference as WeightReference

# Public names whose modules few programs need, by module: imported on first access (PEP 562).
_LAZY: Final = {
    name: f"sardonyx.{module}"
    for module, names in {
        "custom_ops.native_op": "native_op",
        "custom_ops.python_op": "custom_op unregister_custom_op",
        "ort.adapters": "AdapterFormat LoraAdapter",
        "ort.allocators": (
            "OrtArenaCfg OrtMemoryInfo create_and_register_allocator "
            "create_and_register_allocator_v2"
        ),
        "ort.device": "OrtDevice",
        "ort.device_enums": (
            "OrtAllocatorType OrtCompileApiFlags OrtDeviceMemoryType OrtHardwareDeviceType "
            "OrtMemType OrtMemoryInfoDeviceType OrtSparseFormat"
        ),
        "ort.ep_devices": (
            "OrtEpAssignedNode OrtEpAssignedSubgraph OrtEpContextData OrtEpContextDataBuffer "
            "OrtEpDevice OrtHardwareDevice OrtSyncStream get_ep_devices"
        ),
        "ort.node_arg": "ModelMetadata NodeArg",
        "ort.ort_value": "OrtValue",
        "ort.ort_value_vector": "copy_tensors",
        "ort.sparse_tensor": "SparseTensor",
        "providers": "register_provider unregister_provider",
        "session.io_binding": "IOBinding SessionIOBinding",
        "session.model_compiler": "ModelCompiler OrtExternalInitializerInfo",
        "weights.layouts": "PrepackedWeightsContainer",
        "weights.loading": "DataLoader LoaderManager WeightReference",
    }.items()
    for name in names.split()
}
_EAGER: Final = (
    "ExecutionMode ExecutionOrder GraphOptimizationLevel InferenceSession OrtDeviceVendorId "
    "OrtExecutionProviderDevicePolicy RunOptions SardonyxError SessionOptions "
    "disable_telemetry_events enable_telemetry_events get_all_providers get_available_providers "
    "get_build_info get_device get_version_string has_collective_ops preload_dlls print_debug_info "
    "register_execution_provider_library set_default_logger_severity set_default_logger_verbosity "
    "set_global_thread_pool_sizes set_seed unregister_execution_provider_library"
)

if not TYPE_CHECKING:  # a type checker would accept any name, and reads the imports above
    __all__ = sorted([*_EAGER.split(), *_LAZY])

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    def __getattr__(name: str) -> Any:
        import importlib

        if name == "capi":
            return importlib.import_module("sardonyx.capi")
        if name not in _LAZY:
            raise AttributeError(f"module 'sardonyx' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
        return value

"""Sardonyx, an ONNX runtime for Python: `import sardonyx as ort`, and the program runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sardonyx.base.bundle import bundle_of

with bundle_of(__spec__):
    import sardonyx.preload  # noqa: F401 - imported for what it imports
    from sardonyx.errors import NotFound, NotImplemented, SardonyxError
    from sardonyx.ort.enums import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        OrtAllocatorType,
        OrtCompileApiFlags,
        OrtDeviceMemoryType,
        OrtDeviceVendorId,
        OrtExecutionProviderDevicePolicy,
        OrtHardwareDeviceType,
        OrtMemoryInfoDeviceType,
        OrtMemType,
        OrtSparseFormat,
    )
    from sardonyx.ort.options import RunOptions, SessionOptions
    from sardonyx.session.inference import InferenceSession

if TYPE_CHECKING:
    from sardonyx import capi as capi
    from sardonyx.custom_ops.declare import custom_op, native_op, unregister_custom_op
    from sardonyx.ort.adapters import AdapterFormat, LoraAdapter
    from sardonyx.ort.allocators import (
        OrtArenaCfg,
        OrtMemoryInfo,
        create_and_register_allocator,
        create_and_register_allocator_v2,
    )
    from sardonyx.ort.device import OrtDevice
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

__version__: Final = "0.1.0"
ORT_VERSION: Final = "1.31.1"  # the onnxruntime whose interface this is

# Names whose modules few programs need: imported when first asked for.
_LATER: Final = {
    "AdapterFormat": "sardonyx.ort.adapters",
    "DataLoader": "sardonyx.weights.loading",
    "IOBinding": "sardonyx.session.io_binding",
    "LoaderManager": "sardonyx.weights.loading",
    "LoraAdapter": "sardonyx.ort.adapters",
    "ModelCompiler": "sardonyx.session.model_compiler",
    "ModelMetadata": "sardonyx.ort.node_arg",
    "NodeArg": "sardonyx.ort.node_arg",
    "OrtArenaCfg": "sardonyx.ort.allocators",
    "OrtDevice": "sardonyx.ort.device",
    "OrtEpAssignedNode": "sardonyx.ort.ep_devices",
    "OrtEpAssignedSubgraph": "sardonyx.ort.ep_devices",
    "OrtEpContextData": "sardonyx.ort.ep_devices",
    "OrtEpContextDataBuffer": "sardonyx.ort.ep_devices",
    "OrtEpDevice": "sardonyx.ort.ep_devices",
    "OrtExternalInitializerInfo": "sardonyx.session.model_compiler",
    "OrtHardwareDevice": "sardonyx.ort.ep_devices",
    "OrtMemoryInfo": "sardonyx.ort.allocators",
    "OrtSyncStream": "sardonyx.ort.ep_devices",
    "OrtValue": "sardonyx.ort.ort_value",
    "PrepackedWeightsContainer": "sardonyx.weights.layouts",
    "SessionIOBinding": "sardonyx.session.io_binding",
    "SparseTensor": "sardonyx.ort.sparse_tensor",
    "WeightReference": "sardonyx.weights.loading",
    "copy_tensors": "sardonyx.ort.ort_value_vector",
    "create_and_register_allocator": "sardonyx.ort.allocators",
    "create_and_register_allocator_v2": "sardonyx.ort.allocators",
    "custom_op": "sardonyx.custom_ops.declare",
    "get_ep_devices": "sardonyx.ort.ep_devices",
    "native_op": "sardonyx.custom_ops.declare",
    "register_provider": "sardonyx.providers",
    "unregister_custom_op": "sardonyx.custom_ops.declare",
    "unregister_provider": "sardonyx.providers",
}


if not TYPE_CHECKING:  # type checkers would take any name for granted

    def __getattr__(name: str) -> Any:
        import importlib

        if name == "capi":
            return importlib.import_module("sardonyx.capi")
        if name not in _LATER:
            raise AttributeError(f"module 'sardonyx' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
        return value


def get_available_providers() -> list[str]:
    """The providers that sessions here can use."""
    from sardonyx.providers import available

    return list(available())


def get_all_providers() -> list[str]:
    """Every provider name that onnxruntime knows, in its order."""
    from sardonyx.providers import ALL

    return list(ALL)


def get_device() -> str:
    """The best kind of device that sessions can use."""
    from sardonyx.providers.probe import cuda_may_work

    return "GPU" if cuda_may_work() else "CPU"


def get_version_string() -> str:
    """Our version."""
    return __version__


def get_build_info() -> str:
    """What was built, in one line."""
    from sardonyx import _native

    return f"Sardonyx {__version__}, native core {_native.version}"


def has_collective_ops() -> bool:
    """Whether ops over several processes are there: they are not."""
    return False


def set_seed(seed: int) -> None:
    """Seeds the random ops of nodes that have no seed of their own."""
    from sardonyx.ops.random import set_seed as seed_ops

    seed_ops(seed)


def set_default_logger_severity(level: int) -> None:
    """Shows messages from this severity on: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal."""
    from sardonyx.base.log import set_severity

    set_severity(level)


def set_default_logger_verbosity(level: int) -> None:
    """How much of what is said at severity 0 is shown; there is one degree of it here."""
    if not isinstance(level, int):
        raise TypeError(f"a verbosity is a number, not {type(level).__name__}")


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Threads of sessions whose `use_per_session_threads` is off; 0: as many as CPUs."""
    from sardonyx.ort.options import set_global_threads

    set_global_threads(intra_op_num_threads, inter_op_num_threads)


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Kept for programs that call it: there are no libraries to load ahead."""


def register_execution_provider_library(name: str, path: str) -> None:
    """Providers of onnxruntime's C interface cannot be loaded; the error says so."""
    raise NotImplemented(
        f"{path} is a library for onnxruntime's C interface, which Sardonyx does not have",
        hint="write the provider in Python",
    )


def unregister_execution_provider_library(name: str) -> None:
    """The counterpart of `register_execution_provider_library`."""
    raise NotFound(f"no provider library is registered as {name!r}")


def enable_telemetry_events() -> None:
    """Kept for programs that call it: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Kept for programs that call it: there is no telemetry."""


def print_debug_info() -> None:
    """Versions of everything that matters for a bug report."""
    import platform

    import ml_dtypes
    import numpy

    print(f"{get_build_info()}\nPython {platform.python_version()}\nnumpy {numpy.__version__}")
    print(f"ml_dtypes {ml_dtypes.__version__}\n{platform.platform()}")


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

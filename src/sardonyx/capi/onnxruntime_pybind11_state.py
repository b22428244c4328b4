"""The public names of onnxruntime.capi.onnxruntime_pybind11_state."""

from __future__ import annotations

from sardonyx.capi.schemas import get_all_operator_schema as get_all_operator_schema
from sardonyx.capi.schemas import get_all_opkernel_def as get_all_opkernel_def
from sardonyx.capi.schemas import get_registered_ep_kernel_defs as get_registered_ep_kernel_defs
from sardonyx.capi.schemas import opkernel as opkernel
from sardonyx.capi.schemas import schemadef as schemadef
from sardonyx.errors import DeviceReset as DeviceReset
from sardonyx.errors import EngineError as EngineError
from sardonyx.errors import EPFail as EPFail
from sardonyx.errors import Fail as Fail
from sardonyx.errors import InvalidArgument as InvalidArgument
from sardonyx.errors import InvalidGraph as InvalidGraph
from sardonyx.errors import InvalidProtobuf as InvalidProtobuf
from sardonyx.errors import ModelLoadCanceled as ModelLoadCanceled
from sardonyx.errors import ModelLoaded as ModelLoaded
from sardonyx.errors import ModelRequiresCompilation as ModelRequiresCompilation
from sardonyx.errors import NoModel as NoModel
from sardonyx.errors import NoSuchFile as NoSuchFile
from sardonyx.errors import NotFound as NotFound
from sardonyx.errors import NotImplemented as NotImplemented
from sardonyx.errors import RuntimeException as RuntimeException
from sardonyx.ort.adapters import AdapterFormat as AdapterFormat
from sardonyx.ort.adapters import LoraAdapter as LoraAdapter
from sardonyx.ort.allocators import OrtArenaCfg as OrtArenaCfg
from sardonyx.ort.allocators import OrtMemoryInfo as OrtMemoryInfo
from sardonyx.ort.allocators import create_and_register_allocator as create_and_register_allocator
from sardonyx.ort.allocators import (
    create_and_register_allocator_v2 as create_and_register_allocator_v2,
)
from sardonyx.ort.device import OrtDevice as OrtDevice
from sardonyx.ort.device_enums import ArenaExtendStrategy as ArenaExtendStrategy
from sardonyx.ort.device_enums import OrtAllocatorType as OrtAllocatorType
from sardonyx.ort.device_enums import OrtCompileApiFlags as OrtCompileApiFlags
from sardonyx.ort.device_enums import OrtCompiledModelCompatibility as OrtCompiledModelCompatibility
from sardonyx.ort.device_enums import (
    OrtDeviceEpIncompatibilityReason as OrtDeviceEpIncompatibilityReason,
)
from sardonyx.ort.device_enums import OrtDeviceMemoryType as OrtDeviceMemoryType
from sardonyx.ort.device_enums import OrtHardwareDeviceType as OrtHardwareDeviceType
from sardonyx.ort.device_enums import OrtMemoryInfoDeviceType as OrtMemoryInfoDeviceType
from sardonyx.ort.device_enums import OrtMemType as OrtMemType
from sardonyx.ort.device_enums import OrtSparseFormat as OrtSparseFormat
from sardonyx.ort.dlpack import is_dlpack_uint8_tensor as is_dlpack_uint8_tensor
from sardonyx.ort.enums import ExecutionMode as ExecutionMode
from sardonyx.ort.enums import ExecutionOrder as ExecutionOrder
from sardonyx.ort.enums import GraphOptimizationLevel as GraphOptimizationLevel
from sardonyx.ort.enums import OrtExecutionProviderDevicePolicy as OrtExecutionProviderDevicePolicy
from sardonyx.ort.environment import disable_telemetry_events as disable_telemetry_events
from sardonyx.ort.environment import enable_telemetry_events as enable_telemetry_events
from sardonyx.ort.environment import get_all_providers as get_all_providers
from sardonyx.ort.environment import get_available_providers as get_available_providers
from sardonyx.ort.environment import get_build_info as get_build_info
from sardonyx.ort.environment import get_device as get_device
from sardonyx.ort.environment import get_version_string as get_version_string
from sardonyx.ort.environment import has_collective_ops as has_collective_ops
from sardonyx.ort.environment import (
    register_execution_provider_library as register_execution_provider_library,
)
from sardonyx.ort.environment import set_default_logger_severity as set_default_logger_severity
from sardonyx.ort.environment import set_default_logger_verbosity as set_default_logger_verbosity
from sardonyx.ort.environment import set_global_thread_pool_sizes as set_global_thread_pool_sizes
from sardonyx.ort.environment import set_seed as set_seed
from sardonyx.ort.environment import (
    unregister_execution_provider_library as unregister_execution_provider_library,
)
from sardonyx.ort.ep_devices import OrtEpAssignedNode as OrtEpAssignedNode
from sardonyx.ort.ep_devices import OrtEpAssignedSubgraph as OrtEpAssignedSubgraph
from sardonyx.ort.ep_devices import OrtEpContextData as OrtEpContextData
from sardonyx.ort.ep_devices import OrtEpContextDataBuffer as OrtEpContextDataBuffer
from sardonyx.ort.ep_devices import OrtEpDevice as OrtEpDevice
from sardonyx.ort.ep_devices import OrtHardwareDevice as OrtHardwareDevice
from sardonyx.ort.ep_devices import OrtSyncStream as OrtSyncStream
from sardonyx.ort.ep_devices import (
    get_compatibility_info_from_model as get_compatibility_info_from_model,
)
from sardonyx.ort.ep_devices import (
    get_compatibility_info_from_model_bytes as get_compatibility_info_from_model_bytes,
)
from sardonyx.ort.ep_devices import get_ep_devices as get_ep_devices
from sardonyx.ort.ep_devices import (
    get_hardware_device_ep_incompatibility_details as get_hardware_device_ep_incompatibility_details,  # noqa: E501 - onnxruntime's name
)
from sardonyx.ort.ep_devices import get_hardware_devices as get_hardware_devices
from sardonyx.ort.ep_devices import (
    get_model_compatibility_for_ep_devices as get_model_compatibility_for_ep_devices,
)
from sardonyx.ort.matmul_nbits_quantizer import (
    pack_fp4_weights_for_cuda_moe_gemm as pack_fp4_weights_for_cuda_moe_gemm,
)
from sardonyx.ort.matmul_nbits_quantizer import quantize_matmul_2bits as quantize_matmul_2bits
from sardonyx.ort.matmul_nbits_quantizer import quantize_matmul_4bits as quantize_matmul_4bits
from sardonyx.ort.matmul_nbits_quantizer import quantize_matmul_8bits as quantize_matmul_8bits
from sardonyx.ort.matmul_nbits_quantizer import quantize_matmul_bnb4 as quantize_matmul_bnb4
from sardonyx.ort.matmul_nbits_quantizer import (
    quantize_qdq_matmul_2bits as quantize_qdq_matmul_2bits,
)
from sardonyx.ort.matmul_nbits_quantizer import (
    quantize_qdq_matmul_4bits as quantize_qdq_matmul_4bits,
)
from sardonyx.ort.node_arg import ModelMetadata as ModelMetadata
from sardonyx.ort.node_arg import NodeArg as NodeArg
from sardonyx.ort.options import RunOptions as RunOptions
from sardonyx.ort.options import SessionOptions as SessionOptions
from sardonyx.ort.ort_value import OrtValue as OrtValue
from sardonyx.ort.ort_value_vector import OrtValueVector as OrtValueVector
from sardonyx.ort.ort_value_vector import copy_tensors as copy_tensors
from sardonyx.ort.sparse_tensor import SparseBlockSparseView as SparseBlockSparseView
from sardonyx.ort.sparse_tensor import SparseCooView as SparseCooView
from sardonyx.ort.sparse_tensor import SparseCsrView as SparseCsrView
from sardonyx.ort.sparse_tensor import SparseTensor as SparseTensor
from sardonyx.session.c_session import CSession
from sardonyx.session.io_binding import SessionIOBinding as SessionIOBinding
from sardonyx.session.model_compiler import ModelCompiler as ModelCompiler
from sardonyx.session.model_compiler import OrtExternalInitializerInfo as OrtExternalInitializerInfo

InferenceSession = CSession
kNextPowerOfTwo = ArenaExtendStrategy.kNextPowerOfTwo  # noqa: N816 - onnxruntime's name
kSameAsRequested = ArenaExtendStrategy.kSameAsRequested  # noqa: N816


class SessionObjectInitializer:
    """The result of `get_session_initializer`, without contents."""


def get_default_session_options() -> SessionOptions:
    """Return new options with their defaults."""
    return SessionOptions()


def get_session_initializer() -> SessionObjectInitializer:
    """Return a new SessionObjectInitializer, for compatibility."""
    return SessionObjectInitializer()

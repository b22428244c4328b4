"""Names that programs import from onnxruntime.capi.onnxruntime_pybind11_state."""

from __future__ import annotations

from sardonyx.allocators import (
    OrtArenaCfg,
    OrtMemoryInfo,
    create_and_register_allocator,
    create_and_register_allocator_v2,
)
from sardonyx.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtMemType,
)
from sardonyx.errors import (
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from sardonyx.nodearg import ModelMetadata, NodeArg
from sardonyx.options import RunOptions, SessionOptions
from sardonyx.session import InferenceSession

__all__ = [
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelMetadata",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotFound",
    "NotImplemented",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtMemType",
    "OrtMemoryInfo",
    "RunOptions",
    "RuntimeException",
    "SessionOptions",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
]

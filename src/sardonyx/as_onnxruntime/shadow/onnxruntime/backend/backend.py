"""The class and functions that onnxruntime.backend.backend has."""

from sardonyx.backend import Backend as OnnxRuntimeBackend
from sardonyx.backend import is_compatible, prepare, run, supports_device

__all__ = ["OnnxRuntimeBackend", "is_compatible", "prepare", "run", "supports_device"]

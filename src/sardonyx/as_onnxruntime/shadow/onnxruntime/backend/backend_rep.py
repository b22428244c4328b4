"""The class that onnxruntime.backend.backend_rep has."""

from sardonyx.backend import Prepared as OnnxRuntimeBackendRep

__all__ = ["OnnxRuntimeBackendRep"]

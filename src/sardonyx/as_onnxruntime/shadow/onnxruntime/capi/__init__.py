"""The modules that onnxruntime has there; programs reach them with and without an import."""

import importlib
from types import ModuleType

_REACHED = ("_pybind_state", "onnxruntime_inference_collection", "onnxruntime_pybind11_state",
            "onnxruntime_validation")  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name not in _REACHED:
        raise AttributeError(f"module 'onnxruntime.capi' has no attribute {name!r}")
    return importlib.import_module(f"onnxruntime.capi.{name}")

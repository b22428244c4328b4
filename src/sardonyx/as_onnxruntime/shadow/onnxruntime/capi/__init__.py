"""The modules of onnxruntime.capi, also as attributes without an import."""

import importlib
from types import ModuleType

_MODULES = ("_pybind_state", "onnxruntime_inference_collection", "onnxruntime_pybind11_state",
            "onnxruntime_validation")  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module 'onnxruntime.capi' has no attribute {name!r}")
    return importlib.import_module(f"onnxruntime.capi.{name}")

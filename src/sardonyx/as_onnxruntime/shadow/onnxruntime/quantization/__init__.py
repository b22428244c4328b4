"""Quantization, implemented by `sardonyx.quantization`.

Modules for other execution providers (`execution_providers`, `fusions`, `cuda_quantizer`) are those
of an installed onnxruntime.
"""

import importlib
from types import ModuleType

_MODULES = ("base_quantizer", "calibrate", "matmul_nbits_quantizer", "onnx_model",
            "onnx_quantizer", "qdq_quantizer", "quant_utils", "registry", "shape_inference",
            "tensor_quant_overrides")  # fmt: skip

# Importing a module sets an attribute of its package; here the function of that name replaces it.
importlib.import_module(f"{__name__}.quantize")

from sardonyx.quantization import *  # noqa: E402, F403
from sardonyx.quantization import __all__  # noqa: E402, F401


def __getattr__(name: str) -> ModuleType:
    """Return a module of the package, also before it is imported."""
    if name not in _MODULES:
        raise AttributeError(f"module 'onnxruntime.quantization' has no attribute {name!r}")
    return importlib.import_module(f"onnxruntime.quantization.{name}")

"""`sardonyx.quantization.onnx_model` under onnxruntime's name."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("sardonyx.quantization.onnx_model")

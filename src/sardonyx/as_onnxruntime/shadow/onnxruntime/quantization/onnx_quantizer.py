"""`sardonyx.quantization.onnx_quantizer` under onnxruntime's name."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("sardonyx.quantization.onnx_quantizer")

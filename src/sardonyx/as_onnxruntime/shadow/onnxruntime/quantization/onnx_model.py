"""`sardonyx.quantization.onnx_model` under onnxruntime's name."""

import sys

from sardonyx.quantization import onnx_model as _module

sys.modules[__name__] = _module

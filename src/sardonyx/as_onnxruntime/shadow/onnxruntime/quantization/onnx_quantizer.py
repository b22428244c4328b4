"""`sardonyx.quantization.onnx_quantizer` under onnxruntime's name."""

import sys

from sardonyx.quantization import onnx_quantizer as _module

sys.modules[__name__] = _module

"""`sardonyx.quantization.qdq_quantizer` under onnxruntime's name."""

import sys

from sardonyx.quantization import qdq_quantizer as _module

sys.modules[__name__] = _module

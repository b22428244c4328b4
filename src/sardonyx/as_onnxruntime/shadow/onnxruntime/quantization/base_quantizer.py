"""`sardonyx.quantization.base_quantizer` under onnxruntime's name."""

import sys

from sardonyx.quantization import base_quantizer as _module

sys.modules[__name__] = _module

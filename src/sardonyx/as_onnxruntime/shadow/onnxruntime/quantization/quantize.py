"""`sardonyx.quantization.quantize` under onnxruntime's name."""

import sys

from sardonyx.quantization import quantize as _module

sys.modules[__name__] = _module

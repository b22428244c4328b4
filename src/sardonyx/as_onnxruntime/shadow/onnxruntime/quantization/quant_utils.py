"""`sardonyx.quantization.quant_utils` under onnxruntime's name."""

import sys

from sardonyx.quantization import quant_utils as _module

sys.modules[__name__] = _module

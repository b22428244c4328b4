"""`sardonyx.quantization.tensor_quant_overrides` under onnxruntime's name."""

import sys

from sardonyx.quantization import tensor_quant_overrides as _module

sys.modules[__name__] = _module

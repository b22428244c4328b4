"""`sardonyx.quantization.calibrate` under onnxruntime's name."""

import sys

from sardonyx.quantization import calibrate as _module

sys.modules[__name__] = _module

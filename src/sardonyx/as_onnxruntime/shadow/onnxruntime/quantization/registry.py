"""`sardonyx.quantization.registry` under onnxruntime's name."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("sardonyx.quantization.registry")

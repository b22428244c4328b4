"""`sardonyx.quantization.qdq_loss_debug` under onnxruntime's name."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("sardonyx.quantization.qdq_loss_debug")

"""`sardonyx.quantization.static_quantize_runner` under onnxruntime's name."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("sardonyx.quantization.static_quantize_runner")

if __name__ == "__main__":
    importlib.import_module("sardonyx.quantization.static_quantize_runner").main()

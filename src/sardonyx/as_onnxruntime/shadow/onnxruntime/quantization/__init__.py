"""Quantization, implemented by `sardonyx.quantization`; `cuda_quantizer` needs onnxruntime's own."""

from sardonyx.quantization import *  # noqa: F403
from sardonyx.quantization import __all__  # noqa: F401

"""Quantization, implemented by `sardonyx.quantization`.

Modules for other execution providers (`execution_providers`, `fusions`, `cuda_quantizer`) are those
of an installed onnxruntime.
"""

from sardonyx.quantization import *  # noqa: F403
from sardonyx.quantization import __all__  # noqa: F401

from . import quantize as _quantize  # noqa: F401

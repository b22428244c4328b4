"""Quantization, implemented by `sardonyx.quantization`.

Modules for other execution providers (`execution_providers`, `fusions`, `cuda_quantizer`) are those
of an installed onnxruntime.
"""

import importlib

# Importing a module sets an attribute of its package; here the function of that name replaces it.
importlib.import_module(f"{__name__}.quantize")

from sardonyx.quantization import *  # noqa: E402, F403
from sardonyx.quantization import __all__  # noqa: E402, F401

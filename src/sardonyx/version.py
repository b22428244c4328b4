"""The version of this package, and of the onnxruntime whose interface it implements."""

from typing import Final

__version__: Final = "0.1.0"
ORT_VERSION: Final = "1.31.1"

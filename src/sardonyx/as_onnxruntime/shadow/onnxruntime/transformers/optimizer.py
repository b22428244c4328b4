"""The optimizer of transformers, implemented by `sardonyx.transformers`."""

from sardonyx.transformers.optimizer import (
    MODEL_TYPES,
    get_fusion_statistics,
    main,
    optimize_by_fusion,
    optimize_by_onnxruntime,
    optimize_model,
)

from .fusion_options import FusionOptions
from .onnx_model import OnnxModel

__all__ = [
    "MODEL_TYPES",
    "FusionOptions",
    "OnnxModel",
    "get_fusion_statistics",
    "optimize_by_fusion",
    "optimize_by_onnxruntime",
    "optimize_model",
]

if __name__ == "__main__":
    main()

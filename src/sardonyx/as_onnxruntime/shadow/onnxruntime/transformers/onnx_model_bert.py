"""Models with fused ops, implemented by `sardonyx.transformers`."""

from sardonyx.transformers.onnx_model_bert import (
    BertOnnxModel,
)

__all__ = [
    "BertOnnxModel",
]

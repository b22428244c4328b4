"""Edits of a model, implemented by `sardonyx.transformers`."""

from sardonyx.transformers.onnx_model import (
    OnnxModel,
)

__all__ = [
    "OnnxModel",
]

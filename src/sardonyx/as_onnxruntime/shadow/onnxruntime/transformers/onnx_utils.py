"""Weights of a model, implemented by `sardonyx.transformers`."""

from sardonyx.transformers.onnx_utils import (
    extract_raw_data_from_model,
    has_external_data,
)

__all__ = [
    "extract_raw_data_from_model",
    "has_external_data",
]

"""Shapes of a model's values, implemented by `sardonyx.transformers`."""

from sardonyx.transformers.shape_infer_helper import (
    SymbolicShapeInferenceHelper,
)

__all__ = [
    "SymbolicShapeInferenceHelper",
]

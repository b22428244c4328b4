"""Edits of nodes, implemented by `sardonyx.transformers`."""

from sardonyx.transformers.fusion_utils import (
    FusionUtils,
    NumpyHelper,
)

__all__ = [
    "FusionUtils",
    "NumpyHelper",
]

"""Options of the optimizer, implemented by `sardonyx.transformers`."""

from sardonyx.transformers.fusion_options import (
    AttentionMaskFormat,
    AttentionOpType,
    FusionOptions,
)

__all__ = [
    "AttentionMaskFormat",
    "AttentionOpType",
    "FusionOptions",
]

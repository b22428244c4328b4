"""Preparing features: scaling, imputing, encoding categories, and maps to tensors and back."""

from __future__ import annotations

from typing import Final

from sardonyx.ops.features import categories, maps, scale

OPS: Final = (*scale.OPS, *categories.OPS, *maps.OPS)

"""Training: gradient graphs made of the ops' own rules, and what of the forward part to repeat."""

from __future__ import annotations

from sardonyx.train.gradient import gradient

__all__ = ["gradient"]

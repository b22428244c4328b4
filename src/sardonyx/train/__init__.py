"""Training: gradient graphs from the ops' gradient rules, with recomputation of forward nodes."""

from __future__ import annotations

from sardonyx.train.gradient import gradient

__all__ = ["gradient"]

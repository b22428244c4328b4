"""Graph passes: rewrite rules and whole-graph passes; `pipeline.py` lists them in their order."""

from __future__ import annotations

from sardonyx.passes.options import PassOptions
from sardonyx.passes.pipeline import lower, optimize

__all__ = ["PassOptions", "lower", "optimize"]

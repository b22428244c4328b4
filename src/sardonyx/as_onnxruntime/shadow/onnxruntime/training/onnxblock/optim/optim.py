"""Optimizers, implemented by `sardonyx.training`."""

from sardonyx.training.onnxblock.optim import (
    SGD,
    AdamW,
    AdamWOptimizer,
    ClipGradNorm,
    SGDOptimizer,
)

__all__ = ["SGD", "AdamW", "AdamWOptimizer", "ClipGradNorm", "SGDOptimizer"]

"""Optimizers, implemented by `sardonyx.training`."""

from sardonyx.training.onnxblock.optim import SGD, AdamW, ClipGradNorm

__all__ = ["SGD", "AdamW", "ClipGradNorm"]

"""Optimizers, implemented by `sardonyx.train`."""

from sardonyx.train.ort_optim import AdamWMode, FP16_Optimizer, FusedAdam

__all__ = ["AdamWMode", "FP16_Optimizer", "FusedAdam"]

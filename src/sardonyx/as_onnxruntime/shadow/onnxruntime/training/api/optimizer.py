"""Optimizers, implemented by `sardonyx.training`."""

from sardonyx.training.optimizer import Optimizer

__all__ = ["Optimizer"]

"""Training with artifacts, implemented by `sardonyx.training`."""

from sardonyx.training.api import CheckpointState, Module, Optimizer
from sardonyx.training.ort_scheduler import LinearLRScheduler

__all__ = ["CheckpointState", "LinearLRScheduler", "Module", "Optimizer"]

"""Training with artifacts, with the interface of onnxruntime.training.api."""

from __future__ import annotations

from sardonyx.training.checkpoint_state import CheckpointState
from sardonyx.training.module import Module
from sardonyx.training.optimizer import LinearLRScheduler, Optimizer

__all__ = ["CheckpointState", "LinearLRScheduler", "Module", "Optimizer"]

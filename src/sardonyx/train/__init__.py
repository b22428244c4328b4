"""Training: steps and gradient graphs of ONNX models, and PyTorch modules run by sessions."""

from __future__ import annotations

from sardonyx.autodiff.gradient import gradient
from sardonyx.train.adapters import lora, merge
from sardonyx.train.fitting import fit
from sardonyx.train.losses import add_loss
from sardonyx.train.optimizers import SGD, Adafactor, Adam, AdamW
from sardonyx.train.training_step import TrainingStep
from sardonyx.train.wrap import report, wrap

__all__ = [
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "TrainingStep",
    "add_loss",
    "fit",
    "gradient",
    "lora",
    "merge",
    "report",
    "wrap",
]

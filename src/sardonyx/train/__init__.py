"""Training: gradient graphs of ONNX models, and PyTorch modules run by our sessions."""

from __future__ import annotations

from sardonyx.autodiff.gradient import gradient
from sardonyx.train.adapters import lora, merge
from sardonyx.train.wrap import report, wrap

__all__ = ["gradient", "lora", "merge", "report", "wrap"]

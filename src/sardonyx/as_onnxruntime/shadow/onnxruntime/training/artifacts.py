"""Training artifacts, implemented by `sardonyx.training`."""

from sardonyx.training.artifacts import LossType, OptimType, generate_artifacts

__all__ = ["LossType", "OptimType", "generate_artifacts"]

"""`FP16_Optimizer`, implemented by `sardonyx.train`."""

from sardonyx.train.ort_optim import FP16_Optimizer

__all__ = ["FP16_Optimizer"]

"""`FusedAdam`, implemented by `sardonyx.train`."""

from sardonyx.train.ort_optim import AdamWMode, FusedAdam

__all__ = ["AdamWMode", "FusedAdam"]

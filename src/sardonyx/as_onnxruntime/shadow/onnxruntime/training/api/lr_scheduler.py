"""Schedulers, implemented by `sardonyx.training`."""

from sardonyx.training.ort_scheduler import LinearLRScheduler

__all__ = ["LinearLRScheduler"]

"""Modules, implemented by `sardonyx.training`."""

from sardonyx.training.module import Module

__all__ = ["Module"]

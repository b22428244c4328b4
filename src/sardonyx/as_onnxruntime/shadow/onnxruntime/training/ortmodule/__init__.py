"""`ORTModule`, implemented by `sardonyx.train`."""

from sardonyx.train.ortmodule import DebugOptions, LogLevel, ORTModule, ORTModuleFallbackException

__all__ = ["DebugOptions", "LogLevel", "ORTModule", "ORTModuleFallbackException"]

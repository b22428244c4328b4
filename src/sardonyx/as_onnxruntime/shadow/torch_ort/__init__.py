"""The package `torch_ort`, implemented by `sardonyx.train`."""

from sardonyx.train.ortmodule import DebugOptions, LogLevel, ORTModule

__all__ = ["DebugOptions", "LogLevel", "ORTModule"]
__version__ = "1.19.2"

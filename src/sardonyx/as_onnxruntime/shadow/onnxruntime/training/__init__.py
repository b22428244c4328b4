"""Training: `onnxruntime.training.ortmodule`, implemented by `sardonyx.train`."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Return `ORTModule`, which its first scripts import from here; torch is imported only then."""
    if name == "ORTModule":
        from sardonyx.train.ortmodule import ORTModule

        return ORTModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

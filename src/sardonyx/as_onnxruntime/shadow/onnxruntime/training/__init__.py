"""Training: `ortmodule` by `sardonyx.train`, `api`, `artifacts`, `onnxblock` by its `training`."""

import importlib
from typing import Any

_MODULES = ("api", "artifacts", "onnxblock", "optim")


def __getattr__(name: str) -> Any:
    """Return a submodule, or `ORTModule`, which its first scripts import from here.

    torch and onnx are imported only then.
    """
    if name == "ORTModule":
        from sardonyx.train.ortmodule import ORTModule

        return ORTModule
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

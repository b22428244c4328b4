"""The model that blocks edit, implemented by `sardonyx.training`."""

from typing import Any

from sardonyx.training.onnxblock.base_model import (
    ModelAccessor,
    base,
    current,
    custom_op_library,
    empty_base,
)

__all__ = ["ModelAccessor", "base", "custom_op_library", "empty_base"]


def __getattr__(name: str) -> Any:
    """Return the model that is edited now; blocks of programs read it from here."""
    if name == "_GLOBAL_ACCESSOR":
        return current()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""`ORTModule`: onnxruntime's door to training, for programs that were written for it."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Any, Final

import torch

from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.train.wrap import wrap

# What torch.nn.Module keeps of its parameters, buffers and submodules.
_TABLES: Final = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules")


class LogLevel(IntEnum):
    """How much ORTModule logs."""

    VERBOSE = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    FATAL = 4


class ORTModuleFallbackException(RuntimeException):
    """Raised by onnxruntime when it gives up a module; Sardonyx reports fallbacks and runs on."""


class DebugOptions:
    """onnxruntime's debug options; nothing is exported here, so there are no files to save."""

    def __init__(
        self,
        log_level: LogLevel = LogLevel.WARNING,
        save_onnx: bool = False,
        onnx_prefix: str = "",
        save_path: str = "",
        config: Any = None,
    ) -> None:
        if save_onnx and not onnx_prefix:
            raise ValueError("onnx_prefix must be provided when save_onnx is set.")
        self.log_level = log_level
        self.save_onnx = save_onnx
        self.onnx_prefix = onnx_prefix
        self.save_path = save_path or os.getcwd()


class ORTModule(torch.nn.Module):
    """A module whose calls run in Sardonyx; everything else is the original module's.

    Parameters, buffers, submodules and attributes are those of the original module, under its
    names: checkpoints of wrapped and plain modules are the same, also inside of a parent.
    """

    def __init__(self, module: torch.nn.Module, debug_options: DebugOptions | None = None) -> None:
        if not isinstance(module, torch.nn.Module):
            raise InvalidArgument(f"ORTModule takes a torch.nn.Module, not {type(module).__name__}")
        super().__init__()
        # The tables of torch.nn.Module, not a submodule: names would get a prefix.
        for table in _TABLES:
            object.__setattr__(self, table, getattr(module, table))
        self.training = module.training
        object.__setattr__(self, "_original", wrap(module))

    @property
    def module(self) -> torch.nn.Module:
        """The original module."""
        return self._original  # type: ignore[no-any-return]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped module."""
        return self._original(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_original":
            raise AttributeError(name)
        return getattr(self._original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ or "_original" not in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._original, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._original, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the original module; a copy is wrapped again."""
        return type(self), (self._original,)

    def apply(self, fn: Any) -> ORTModule:
        """Call a function with the original module and each of its submodules."""
        self._original.apply(fn)
        return self

    def train(self, mode: bool = True) -> ORTModule:
        """Set the mode of the original module."""
        self._original.train(mode)
        self.training = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the original module's, whose hooks run."""
        return self._original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load into the original module, whose hooks run."""
        return self._original.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._original._load_from_state_dict(*args)

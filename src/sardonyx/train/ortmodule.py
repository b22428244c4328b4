"""`ORTModule`: onnxruntime's door to training, for programs that were written for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import torch

from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.train.wrap import wrap


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

    Parameters, buffers, `state_dict` and attributes are those of the original module, under its
    names: checkpoints of wrapped and plain modules are the same.
    """

    def __init__(self, module: torch.nn.Module, debug_options: DebugOptions | None = None) -> None:
        if not isinstance(module, torch.nn.Module):
            raise InvalidArgument(f"ORTModule takes a torch.nn.Module, not {type(module).__name__}")
        super().__init__()
        # Not registered as a submodule: names would get a prefix.
        object.__setattr__(self, "_original", wrap(module))
        self.training = module.training

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

    def _apply(self, fn: Any, recurse: bool = True) -> ORTModule:
        self._original._apply(fn, recurse)
        return self

    def apply(self, fn: Any) -> ORTModule:
        self._original.apply(fn)
        return self

    def train(self, mode: bool = True) -> ORTModule:
        self._original.train(mode)
        self.training = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.load_state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from self._original.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from self._original.named_buffers(*args, **kwargs)

    def named_children(self) -> Iterator[Any]:
        yield from self._original.named_children()

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from self._original.named_modules(*args, **kwargs)

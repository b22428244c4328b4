"""Parts of onnxruntime that Sardonyx has not: borrowed where onnxruntime is installed, or refused.

They are Python programs over onnx and sessions, so onnxruntime's own files run on our sessions.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_SHADOW = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NAMES = ("quantization", "tools", "transformers")


class _Refusal(importlib.abc.Loader):
    """The loader of a module that is not there: its import says why."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        raise ImportError(
            f"Sardonyx has no {spec.name}, and onnxruntime, whose files it would borrow, is not "
            "installed: pip install onnxruntime, and this program still runs on Sardonyx",
            name=spec.name,
        )

    def exec_module(self, module: ModuleType) -> None:
        """Never reached."""


class _Finder:
    """Finds the modules of `_NAMES`, for the import system."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, part = name.partition(".")
        if package != "onnxruntime" or part not in _NAMES:
            return None
        places = [p for p in sys.path if os.path.abspath(p) != _SHADOW]
        real = importlib.machinery.PathFinder.find_spec("onnxruntime", places)
        folders = real.submodule_search_locations if real is not None else None
        found = importlib.machinery.PathFinder.find_spec(name, folders) if folders else None
        return found or importlib.machinery.ModuleSpec(name, _Refusal())


def install() -> None:
    """Asks the finder after all others."""
    sys.meta_path.append(_Finder())

"""Modules of onnxruntime that Sardonyx does not have: imported from an installed onnxruntime.

They are pure Python over onnx and sessions, so onnxruntime's own files run on Sardonyx' sessions.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_SHADOW = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NAMES = (
    "tools",
    "transformers",
    # Of quantization, what only serves the QNN and CUDA providers.
    "quantization.cuda_quantizer",
    "quantization.execution_providers",
    "quantization.fusions",
    "quantization.neural_compressor",
)


class _MissingLoader(importlib.abc.Loader):
    """The loader of a missing module: importing it raises an error with the reason."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        raise ImportError(
            f"Sardonyx has no {spec.name}, and onnxruntime, whose files it would use, is not "
            "installed: pip install onnxruntime, and this program still runs on Sardonyx",
            name=spec.name,
        )

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `create_module` raises."""


class _Finder:
    """A meta path finder of the modules and packages in `_NAMES`, and of the modules in them.

    Packages and modules that the shadow has are found before.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, inner = name.partition(".")
        is_known = any(f"{inner}.".startswith(f"{known}.") for known in _NAMES)
        if package != "onnxruntime" or not is_known:
            return None
        paths = [p for p in sys.path if os.path.abspath(p) != _SHADOW]
        real = importlib.machinery.PathFinder.find_spec("onnxruntime", paths)
        between = inner.split(".")[:-1]  # the packages that the module is in
        if real is None or not real.submodule_search_locations:
            return importlib.machinery.ModuleSpec(name, _MissingLoader())
        folders = [os.path.join(f, *between) for f in real.submodule_search_locations]
        spec = importlib.machinery.PathFinder.find_spec(name, folders)
        if spec is not None and between[:1] == ["transformers"]:
            # Modules of this package import each other by their bare names.
            sys.path.extend(f for f in folders if f not in sys.path)
        return spec


def install() -> None:
    """Add the finder after all others."""
    sys.meta_path.append(_Finder())

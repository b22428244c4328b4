"""The package `onnxruntime`, implemented by Sardonyx; see sardonyx.as_onnxruntime."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


def _find_sardonyx() -> None:
    """Import the Sardonyx that contains this folder, if sys.path has none.

    Only its package: nothing else in its parent folder becomes importable.
    """
    root = os.path.abspath(os.path.join(__file__, *[os.pardir] * 5))
    spec = importlib.machinery.PathFinder.find_spec("sardonyx", [root])
    if spec is None or spec.loader is None:
        raise ImportError(f"onnxruntime is implemented by sardonyx here, which is not in {root}")
    module = sys.modules["sardonyx"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if importlib.util.find_spec("sardonyx._native") is None:
        del sys.modules["sardonyx"]
        raise ImportError(
            f"sardonyx in {root} is not built for Python "
            f"{sys.version_info.major}.{sys.version_info.minor}: install it there, or remove "
            f"{os.path.dirname(__path__[0])} from PYTHONPATH"
        )


if importlib.util.find_spec("sardonyx") is None:
    _find_sardonyx()

import sardonyx  # noqa: E402  # after it was located

from . import _missing  # noqa: E402

__version__ = version = sardonyx.ORT_VERSION
__author__ = "the Sardonyx developers"
package_name = "onnxruntime"
cuda_version = ""
# Type checkers do not see `sardonyx.__all__`, which is computed.
__all__ = [*sardonyx.__all__, "cuda_version", "package_name", "version"]  # type: ignore[attr-defined]

_missing.install()


def get_version_string() -> str:
    """Return the version of onnxruntime whose interface this is."""
    return __version__


def __getattr__(name: str) -> Any:
    if name in ("capi", "datasets"):  # attributes after `import onnxruntime`
        return importlib.import_module(f"onnxruntime.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'onnxruntime' has no attribute {name!r}")
    value = globals()[name] = getattr(sardonyx, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "capi", "datasets"})

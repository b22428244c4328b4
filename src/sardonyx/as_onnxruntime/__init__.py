"""Runs programs written for onnxruntime on Sardonyx: `import onnxruntime` imports Sardonyx.

    python -m sardonyx.as_onnxruntime SCRIPT | -m MODULE | -c CODE [ARGS...]

The folder `shadow` has a package `onnxruntime` and its metadata. It is put first on sys.path of
this process and, through PYTHONPATH, of its child processes.
"""

from __future__ import annotations

import os
import sys
from typing import Final

SHADOW: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shadow")


def install(*, children: bool = True) -> None:
    """Make every later `import onnxruntime` import Sardonyx, here and in child processes.

    It must be called before anything imports onnxruntime.
    """
    imported = sys.modules.get("onnxruntime")
    if imported is not None:
        path = os.path.abspath(getattr(imported, "__file__", None) or "")
        if not path.startswith(SHADOW + os.sep):
            raise ImportError(
                f"onnxruntime is imported already, from {path}: call "
                "sardonyx.as_onnxruntime.install() before anything imports it"
            )
    if SHADOW not in sys.path:
        sys.path.insert(0, SHADOW)
    if children:
        os.environ.update(environment())


def environment() -> dict[str, str]:
    """Return the environment variables of a Python process that imports Sardonyx instead."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [SHADOW, *(path for path in before if path and path != SHADOW)]
    return {"PYTHONPATH": os.pathsep.join(paths)}

"""Programs written for onnxruntime, run on Sardonyx: `import onnxruntime` finds us.

    python -m sardonyx.as_onnxruntime SCRIPT | -m MODULE | -c CODE [ARGS...]

The folder `shadow` holds a package `onnxruntime` and its metadata. It comes first on the path of
modules, in this process and, through PYTHONPATH, in those that it starts.
"""

from __future__ import annotations

import os
import sys
from typing import Final

SHADOW: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shadow")


def install(*, children: bool = True) -> None:
    """Lets every later `import onnxruntime` find Sardonyx, here and in child processes.

    Call it before anything imports onnxruntime: what has been imported stays as it is.
    """
    there = sys.modules.get("onnxruntime")
    if there is not None:
        place = os.path.abspath(getattr(there, "__file__", None) or "")
        if not place.startswith(SHADOW + os.sep):
            raise ImportError(
                f"onnxruntime is imported already, from {place}: call "
                "sardonyx.as_onnxruntime.install() before anything imports it"
            )
    if SHADOW not in sys.path:
        sys.path.insert(0, SHADOW)
    if children:
        os.environ.update(environment())


def environment() -> dict[str, str]:
    """What the environment of a Python process needs to have onnxruntime's name lead here."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [SHADOW, *(path for path in before if path and path != SHADOW)]
    return {"PYTHONPATH": os.pathsep.join(paths)}

"""Postpone the cyclic garbage collector while a model is compiled.

A graph under construction consists of thousands of new objects that stay alive, and the collector
scans them again and again. Compare `python bench/compile.py MODEL.onnx` with the same command under
SARDONYX_GC_PAUSE=0, which switches the pause off: models of a thousand nodes gain some 5 %, small
ones nothing.

The pause ends with the compilation, also by an error; garbage of other threads waits as long. A
collector that the program has disabled stays disabled. No object is frozen or moved to another
generation, no threshold changes, and the import of the package does not pause anything.
"""

from __future__ import annotations

import gc
import os
from typing import Final

_IS_ON: Final = os.environ.get("SARDONYX_GC_PAUSE") != "0"


class GcPause:
    """A `with` block in which no garbage collection starts."""

    __slots__ = ("_was_enabled",)

    def __enter__(self) -> None:
        self._was_enabled = _IS_ON and gc.isenabled()
        if self._was_enabled:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            gc.enable()

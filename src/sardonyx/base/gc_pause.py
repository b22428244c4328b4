"""Postpone the cyclic garbage collector while a model is compiled.

A graph under construction consists of thousands of new objects that stay alive, and the collector
scans them again and again: 54 times for light_densenet121 of the onnx package (910 nodes), once
with the pause. The first session of it starts in 151 ms instead of 159, later ones in 130 instead
of 133 (best of 15 processes, CPU time; bench/compile.py, and again with SARDONYX_GC_PAUSE=0, which
switches the pause off). Small models gain nothing.

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

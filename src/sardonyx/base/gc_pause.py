"""Postpone the cyclic garbage collector while a model is compiled.

A graph under construction is thousands of new objects that all stay alive. The collector scans
them again and again: 54 collections for light_densenet121 of the onnx package (910 nodes), 17 % of
the first session's start and 9 % of later ones; with the pause one collection runs at the end:

    python bench/compile.py MODEL.onnx      # and with SARDONYX_GC_PAUSE=0

The pause ends with the compilation, errors included; garbage of other threads waits as long.
A collector that the program has switched off stays off. Nothing is frozen, no threshold changes.
SARDONYX_GC_PAUSE=0 leaves the collector alone.
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

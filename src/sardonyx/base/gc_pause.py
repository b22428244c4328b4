"""Postpone the cyclic garbage collector while the package is imported or a model is compiled.

Modules and a graph under construction consist of thousands of new objects that stay alive, and the
collector scans them again and again. Compare `python bench/import_time.py` and `bench/compile.py`
with the same commands under SARDONYX_GC_PAUSE=0, which switches the pause off: the import gains 10
to 15 %, models of a thousand nodes some 5 %, small ones nothing.

The pause ends with the import or the compilation, also by an error; garbage of other threads waits
as long. A collector that the program has disabled stays disabled, and no threshold changes. All
young objects are then moved to the oldest generation without a scan. Otherwise the next allocations
would scan the new objects once per generation to find that they are alive: 2 ms after the import,
and 2 to 5 ms in the first session.
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
            if not gc.get_freeze_count():  # else it would return what the program froze
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()

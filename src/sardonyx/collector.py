"""Work that makes many objects and no garbage, which the collector need not look at."""

from __future__ import annotations

import gc


class Paused:
    """Puts off the collector; what was made meanwhile then counts as old, without being looked at.

    A graph under construction, or a module, is only work for it.
    """

    __slots__ = ("_was_enabled",)

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if not self._was_enabled:
            return
        if not gc.get_freeze_count():  # else the program has frozen objects that are to stay so
            gc.freeze()
            gc.unfreeze()
        gc.enable()

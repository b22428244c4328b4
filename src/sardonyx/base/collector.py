"""Work that makes many objects and no garbage, which the collector need not look at."""

from __future__ import annotations

import gc
from typing import ClassVar, Final

MANY: Final = 1 << 17  # objects that became old unseen: garbage of theirs is not kept for ever


class Paused:
    """Puts off the collector; what was made meanwhile then counts as old, without being looked at.

    A graph under construction, or a module, is only work for it. Python counts such objects
    nowhere, so that we look for garbage ourselves when there are many.
    """

    __slots__ = ("_was_enabled",)
    _made: ClassVar[int] = 0

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if not self._was_enabled:
            return
        if not gc.get_freeze_count():  # else the program has frozen objects that are to stay so
            Paused._made += gc.get_count()[0]
            gc.freeze()
            gc.unfreeze()
        gc.enable()
        if Paused._made > MANY:
            Paused._made = 0
            gc.collect()

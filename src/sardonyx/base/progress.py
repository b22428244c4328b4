"""Progress of long operations: the core reports it, a display shows it.

`track` opens a display for one operation. The default display is a plain line on standard error;
`use_display` installs another one, as the command line does.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final, Protocol, Self

from sardonyx.base.units import format_bytes

DELAY_S: Final = 2.0  # shorter operations show nothing
_INTERVAL_S: Final = 0.1  # between two updates of the line


class Progress(Protocol):
    """One operation in progress."""

    def update(self, done: int, total: int, amount: str = "") -> None:
        """Report that `done` of `total` bytes are processed. Any thread may call it.

        With `amount`, the numbers are not bytes, and this text is shown for them.
        """
        ...


Display = Callable[[str], AbstractContextManager[Progress]]  # takes a description


class TerminalLine:
    """A line on standard error with the share that is done, if that is a terminal.

    It appears with the first update after DELAY_S and is erased at the end.
    """

    def __init__(self, description: str) -> None:
        self._description = description
        self._next_s = 0.0  # when the line is written next
        self._is_shown = False

    def __enter__(self) -> Self:
        self._next_s = time.monotonic() + DELAY_S
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._write("")

    def update(self, done: int, total: int, amount: str = "") -> None:
        """Rewrite the line, at most every _INTERVAL_S."""
        now = time.monotonic()
        if now >= self._next_s and sys.stderr.isatty():
            self._next_s, self._is_shown = now + _INTERVAL_S, True
            share = f"{done / max(total, 1):.0%} of {format_bytes(total)}"
            self._write(f"{self._description}: {amount or share}")

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")  # \x1b[K erases the rest of the line
        sys.stderr.flush()


_DISPLAY: Final[ContextVar[Display]] = ContextVar("sardonyx_progress", default=TerminalLine)


def track(description: str) -> AbstractContextManager[Progress]:
    """Return a context manager that displays an operation while it is open."""
    return _DISPLAY.get()(description)


@contextlib.contextmanager
def use_display(display: Display) -> Iterator[None]:
    """Show operations that this context starts with `display`."""
    token = _DISPLAY.set(display)
    try:
        yield
    finally:
        _DISPLAY.reset(token)

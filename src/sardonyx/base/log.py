"""Logging: Python's own, under the name "sardonyx", with onnxruntime's severities.

Python's module takes milliseconds to import: that is done when there is something to say that a
session asks for, or when the program has imported it itself and may have set it up.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from sardonyx.errors import InvalidArgument

if TYPE_CHECKING:
    import logging

# Python's levels by onnxruntime's severities: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.
SEVERITIES: Final = (10, 20, 30, 40, 50)
_ROOT: Final = "sardonyx"
_floor: Final[ContextVar[int]] = ContextVar("floor", default=0)


class Logger:
    """One of Python's loggers, of a session where it has a severity of its own."""

    __slots__ = ("_severity",)

    def __init__(self, severity: int = -1) -> None:
        self._severity = severity

    def debug(self, text: str, *given: object) -> None:
        """Says what only those want who look for the reason of something."""
        if self._severity == 0 or "logging" in sys.modules:
            self.python().debug(text, *given, stacklevel=2)

    def info(self, text: str, *given: object) -> None:
        """Says what was done."""
        if self._severity in (0, 1) or "logging" in sys.modules:
            self.python().info(text, *given, stacklevel=2)

    def warning(self, text: str, *given: object) -> None:
        """Says what may not be meant so."""
        self.python().warning(text, *given, stacklevel=2)

    def exception(self, text: str, *given: object) -> None:
        """Says what went wrong, with the error that is being handled."""
        self.python().exception(text, *given, stacklevel=2)

    def python(self) -> logging.Logger:
        """Python's logger."""
        found = _python()
        if self._severity < 0:
            return found
        own = found.getChild(f"severity{self._severity}")
        own.setLevel(SEVERITIES[min(self._severity, len(SEVERITIES) - 1)])
        show()
        return own


logger: Final = Logger()


def _python() -> logging.Logger:
    import logging

    found = logging.getLogger(_ROOT)
    if _is_wanted not in found.filters:
        found.addFilter(_is_wanted)
    return found


def _is_wanted(record: Any) -> bool:
    wanted: bool = record.levelno >= _floor.get()
    return wanted


def set_severity(level: int) -> None:
    """Shows messages from this severity on, for the whole process."""
    if not 0 <= level < len(SEVERITIES):
        raise InvalidArgument(f"a log severity is 0 (verbose) to 4 (fatal), not {level}")
    _python().setLevel(SEVERITIES[level])
    show()


@contextlib.contextmanager
def at_severity(level: int) -> Iterator[None]:
    """Holds back what is said below a session's severity while the session is made."""
    if level < 0:
        yield
        return
    token = _floor.set(SEVERITIES[min(level, len(SEVERITIES) - 1)])
    try:
        yield
    finally:
        _floor.reset(token)


def of_session(level: int) -> Logger:
    """The logger of a session: ours, or where a severity is asked for one of its own."""
    return logger if level < 0 else Logger(level)


def show() -> None:
    """Sends messages to stderr, unless the program has set up logging itself."""
    import logging

    found = _python()
    if not found.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s:sardonyx] %(message)s"))
        found.addHandler(handler)

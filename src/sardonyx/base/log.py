"""Logging: Python's logger "sardonyx", with onnxruntime's severities.

The logging module takes milliseconds to import. It is imported for the first message that a
session's severity enables, or if the program has imported, and perhaps configured, it itself.
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
_min_level: Final[ContextVar[int]] = ContextVar("min_level", default=0)


class Logger:
    """Python's logger "sardonyx" or its child for sessions of one severity."""

    __slots__ = ("_severity",)

    def __init__(self, severity: int = -1) -> None:
        self._severity = severity

    def debug(self, text: str, *args: object) -> None:
        """Log a message for debugging."""
        # The program's own configuration of logging decides once it has imported the module.
        if self._severity == 0 or "logging" in sys.modules:
            self.python().debug(text, *args, stacklevel=2)

    def info(self, text: str, *args: object) -> None:
        """Log what was done."""
        if self._severity in (0, 1) or "logging" in sys.modules:
            self.python().info(text, *args, stacklevel=2)

    def warning(self, text: str, *args: object) -> None:
        """Log something that may be unintended."""
        self.python().warning(text, *args, stacklevel=2)

    def exception(self, text: str, *args: object) -> None:
        """Log an error, with the exception that is being handled."""
        self.python().exception(text, *args, stacklevel=2)

    def python(self) -> logging.Logger:
        """Return the logging.Logger; imports logging."""
        root = _root_logger()
        if self._severity < 0:
            return root
        child = root.getChild(f"severity{self._severity}")
        child.setLevel(SEVERITIES[min(self._severity, len(SEVERITIES) - 1)])
        ensure_handler()
        return child


logger: Final = Logger()


def _root_logger() -> logging.Logger:
    import logging

    root = logging.getLogger(_ROOT)
    if _is_enabled not in root.filters:
        root.addFilter(_is_enabled)
    return root


def _is_enabled(record: Any) -> bool:
    return bool(record.levelno >= _min_level.get())


def set_severity(level: int) -> None:
    """Show messages of this severity and above, for the whole process."""
    if not 0 <= level < len(SEVERITIES):
        raise InvalidArgument(f"a log severity must be 0 (verbose) to 4 (fatal), got {level}")
    _root_logger().setLevel(SEVERITIES[level])
    ensure_handler()


@contextlib.contextmanager
def at_severity(level: int) -> Iterator[None]:
    """Suppress messages below a session's severity in this context, while the session compiles."""
    if level < 0:
        yield
        return
    token = _min_level.set(SEVERITIES[min(level, len(SEVERITIES) - 1)])
    try:
        yield
    finally:
        _min_level.reset(token)


def session_logger(level: int) -> Logger:
    """Return the logger of a session with this severity; -1: the default logger."""
    return logger if level < 0 else Logger(level)


def ensure_handler() -> None:
    """Send messages to stderr, unless the program has configured logging itself."""
    import logging

    root = _root_logger()
    if not root.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s:sardonyx] %(message)s"))
        root.addHandler(handler)

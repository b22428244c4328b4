"""Logging: Python's own, under the name "sardonyx", with onnxruntime's severities."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

from sardonyx.errors import InvalidArgument

logger: Final = logging.getLogger("sardonyx")

# onnxruntime's severities: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.
SEVERITIES: Final = (
    logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL,
)  # fmt: skip


def set_severity(level: int) -> None:
    """Shows messages from this severity on, for the whole process."""
    if not 0 <= level < len(SEVERITIES):
        raise InvalidArgument(f"a log severity is 0 (verbose) to 4 (fatal), not {level}")
    logger.setLevel(SEVERITIES[level])
    show()


_floor: Final[ContextVar[int]] = ContextVar("floor", default=logging.NOTSET)


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno >= _floor.get()


logger.addFilter(_is_wanted)


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


def of_session(level: int) -> logging.Logger:
    """The logger of a session: ours, or where a severity is asked for one of its own."""
    if level < 0:
        return logger
    own = logger.getChild(f"severity{level}")
    own.setLevel(SEVERITIES[min(level, len(SEVERITIES) - 1)])
    show()
    return own


def show() -> None:
    """Sends messages to stderr, unless the program has set up logging itself."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s:sardonyx] %(message)s"))
        logger.addHandler(handler)

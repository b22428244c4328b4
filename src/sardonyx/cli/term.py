"""Text for people: colours where a terminal shows them, columns, sizes, times, a sign of life."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final, Self, TextIO

PATIENCE: Final = 2.0  # seconds before a long piece of work says that it is alive

_NO_TERMINAL: Final = 1 << 16  # columns: lines for other programs are not wrapped
_LEAST: Final = 24  # columns that a wrapped text needs
_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_BAR: Final = 24  # columns
_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def has_colour(stream: TextIO | None = None) -> bool:
    """Whether a stream is a terminal whose user has not turned colours off."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def can_show(text: str, stream: TextIO | None = None) -> bool:
    """Whether a stream's encoding has these characters."""
    try:
        text.encode((stream or sys.stdout).encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def paint(text: str, *styles: str) -> str:
    """The text in a colour, where standard output shows colours."""
    if not text or not has_colour():
        return text
    return f"\x1b[{';'.join(_CODES[s] for s in styles)}m{text}\x1b[0m"


def clean(text: str) -> str:
    """A name out of a model, with whatever a terminal would act on shown as an escape."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def say(text: str = "") -> None:
    """One line to standard output, in whatever characters that can show."""
    encoding = sys.stdout.encoding or "ascii"
    if not can_show(text):
        text = text.encode(encoding, "replace").decode(encoding)
    print(text)


def wrapped(text: str, indent: int) -> list[str]:
    """A text in lines that fit beside an indent, where standard output is a terminal."""
    room = max(_LEAST, shutil.get_terminal_size((_NO_TERMINAL, 24)).columns - indent)
    if len(text) <= room:
        return [text]
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def heading(text: str, note: str = "") -> None:
    """A line that begins a part."""
    if not note:
        say(paint(text, "bold"))
        return
    after(paint(text, "bold"), len(text), note, "dim")


def after(lead: str, width: int, text: str, *styles: str) -> None:
    """A text behind a lead of that width; what does not fit goes on below its beginning."""
    columns = shutil.get_terminal_size((_NO_TERMINAL, 24)).columns
    has_room = width + 2 + min(len(text), _LEAST) <= columns
    indent = width + 2 if has_room else 4
    first, *rest = [paint(line, *styles) for line in wrapped(text, indent)]
    if has_room:
        say(f"{lead}  {first}".rstrip())
    else:
        say(lead.rstrip())
        rest.insert(0, first)
    for line in rest:
        say(" " * indent + line)


def table(
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    styles: Mapping[int, str] | None = None,
) -> None:
    """Rows in columns, as wide as their longest cell; those in `right` are numbers."""
    n_columns = max(map(len, rows), default=0)
    widths = [max((len(r[i]) for r in rows if i < len(r)), default=0) for i in range(n_columns)]
    styles = styles or {}
    for row in rows:
        cells = []
        last = len(row) - 1
        for i, cell in enumerate(row):
            if i == last and i not in right and i:
                break
            padded = (str.rjust if i in right else str.ljust)(cell, widths[i])
            cells.append(paint(padded, styles[i]) if i in styles else padded)
        lead = "  " + "  ".join(cells)
        if len(cells) == len(row):
            say(lead.rstrip())
        else:
            given = [styles[last]] if last in styles else []
            after(lead, sum(widths[:last]) + 2 * last, row[last], *given)


def size(n_bytes: float) -> str:
    """Bytes for people, in powers of 1000."""
    sign, n_bytes = "-" if n_bytes < 0 else "", abs(n_bytes)
    if n_bytes < 1000:
        return f"{sign}{n_bytes:.0f} B"
    for power, unit in enumerate(("KB", "MB", "GB"), 1):
        scaled = n_bytes / 1000**power
        if scaled < 999.5:
            return f"{sign}{scaled:.{_places(scaled)}f} {unit}"
    return f"{sign}{n_bytes / 1e12:.{_places(n_bytes / 1e12)}f} TB"


def duration(seconds: float) -> str:
    """A time for people, with three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 0.9995:
            return f"{seconds * scale:.{_places(seconds * scale)}f} {unit}"
    return f"{seconds * 1e6:.{_places(seconds * 1e6)}f} µs"


def _places(number: float) -> int:
    return 2 if number < 9.995 else 1 if number < 99.95 else 0


def shape(dims: Sequence[object] | None) -> str:
    """A shape as [batch, 3, 224, 224]; dims without a name are question marks."""
    if dims is None:
        return "[...]"
    return f"[{', '.join('?' if d is None or d == -1 else clean(str(d)) for d in dims)}]"


class Progress:
    """A line on standard error that says what is going on, if it takes long and somebody looks."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._how_far = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._spin, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def show(self, done: int, total: int) -> None:
        """Says how many bytes are done."""
        share = done * 100 // max(total, 1)
        full = share * _BAR // 100
        self._how_far = f": [{'#' * full}{'.' * (_BAR - full)}] {share} % of {size(total)}"

    def _spin(self) -> None:
        started = time.monotonic()
        if self._over.wait(PATIENCE):
            return
        frames = _FRAMES if can_show(_FRAMES, sys.stderr) else "|/-\\"
        turn = 0
        while not self._over.wait(0.1):
            turn += 1
            passed = int(time.monotonic() - started)
            line = f"{frames[turn % len(frames)]} {self.what}{self._how_far}, {passed} s"
            sys.stderr.write(f"\r\x1b[K{line[: _width() - 1]}")
            sys.stderr.flush()
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80

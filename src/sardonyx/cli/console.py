"""Text output of the commands: headings, notes and tables by rich.

rich is imported by the functions that print, so that `--help`, `--json` and errors do without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Final

from sardonyx.base.printable import format_shape as format_shape
from sardonyx.base.printable import printable as printable

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, RenderableType

_UNLIMITED: Final = 1 << 16  # columns: output that other programs read is not wrapped
_INDENT: Final = 2
_MIN_TEXT: Final = 9  # characters of a cell that wraps
_LONG_WORD: Final = 24  # characters
_MIN_NAME, _MAX_NAME = 16, 120
_NUMBER: Final = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_GAP: Final = (0, 2, 0, 0)  # of a cell: two spaces at its right


def console() -> Console:
    """Return a console for standard output as it is now.

    Escape codes are written only to a terminal, and not if NO_COLOR is set. Text is printed as it
    is: names from a model may look like rich's markup.
    """
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    return Console(
        force_terminal=is_terminal,
        width=None if is_terminal or "COLUMNS" in os.environ else _UNLIMITED,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )


def can_encode(text: str) -> bool:
    """Return whether the encoding of standard output has these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def say(text: RenderableType = "", style: str = "", least_width: int = 0) -> None:
    """Print a text or a rich object.

    A text is not wrapped: paths and commands in it stay whole. Lines have no trailing spaces;
    characters that the encoding lacks become question marks.
    """
    target = console()
    target.width = max(target.width, least_width)
    with target.capture() as captured:
        target.print(text, style=style, soft_wrap=isinstance(text, str))
    lines = "\n".join(line.rstrip(" ") for line in captured.get().split("\n"))
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(lines.encode(encoding, "replace").decode(encoding))


def note(text: str) -> None:
    """Print a dim, indented paragraph."""
    from rich.padding import Padding

    say(Padding.indent(text, _INDENT), "dim")


def heading(text: str, remark: str = "") -> None:
    """Print a bold line with a dim remark beside it."""
    if not remark:
        say(text, "bold")
        return
    from rich.table import Column, Table

    columns = [Column(style=style, overflow="fold") for style in ("bold", "dim")]
    grid = Table.grid(*columns, padding=_GAP)
    grid.add_row(text, remark)
    say(grid)


def table(
    rows: Sequence[Sequence[str]],
    titles: Sequence[str] = (),
    *,
    right: Sequence[int] = (),
    styles: Mapping[int, str] | None = None,
    names: Sequence[int] = (),
    indent: int = _INDENT,
) -> None:
    """Print rows in columns, by number: those in `right` hold numbers, those in `names` names.

    Names are shortened to fit a row into a line; then columns of text wrap. Nothing else is cut: a
    terminal that is too narrow for the rest wraps the lines itself.
    """
    from rich.padding import Padding
    from rich.table import Table

    if not rows and not titles:
        return
    columns = [list(column) for column in zip_longest(titles, *rows, fillvalue="")]
    margins = indent + 2 * (len(columns) - 1)
    if names:
        _shorten_names(columns, names, console().width - margins)
    grid = Table.grid(padding=_GAP)
    grid.show_header, grid.header_style = bool(titles), "dim"
    least_width = margins
    for i, column in enumerate(columns):
        width = max(map(len, column))
        # Numbers and short words are whole; sentences wrap, long names are folded.
        wraps = i not in right and (width > _LONG_WORD or any(" " in cell for cell in column))
        justify: JustifyMethod = "right" if i in right else "left"
        style = (styles or {}).get(i)
        grid.add_column(column[0], justify=justify, no_wrap=not wraps, overflow="fold", style=style)
        least_width += min(width, _MIN_TEXT) if wraps else width
    for row in islice(zip(*columns, strict=True), 1, None):  # the first one are the titles
        grid.add_row(*row)
    say(Padding.indent(grid, indent), least_width=least_width)


def _shorten_names(columns: list[list[str]], names: Sequence[int], width: int) -> None:
    """Shorten the names in some columns so that all columns have a width."""
    widths = [max(map(len, column)) for column in columns]
    others = sum(w for i, w in enumerate(widths) if i not in names)
    # The shortest column first: what it does not need is left for the others.
    for n_done, i in enumerate(sorted(names, key=lambda i: widths[i])):
        most = max(_MIN_NAME, (width - others) // (len(names) - n_done))
        columns[i] = shortened(columns[i], min(most, _MAX_NAME))
        others += max(map(len, columns[i]))


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most `width` characters, cut where most of them stay different.

    Two cuts are tried: of the beginning up to the number of a layer, and of a range in the middle.
    """
    if max(map(len, names)) <= width:
        return list(names)

    def cut(name: str, starts_at_number: bool, n_head: int) -> str:
        if len(name) <= width:
            return name
        number = _NUMBER.search(name) if starts_at_number else None
        if number is not None and number.start() > 2:
            # From the number on, or from before it if there is space.
            name = f"..{name[min(number.start(), len(name) + 2 - width) :]}"
        return name if len(name) <= width else f"{name[:n_head]}..{name[n_head + 2 - width :]}"

    heads = sorted(range(4, max(width - 3, 5)), key=lambda n: abs(n - (width - 2) // 2))
    cuts = ((at_number, n_head) for n_head in heads for at_number in (True, False))
    candidates = ([cut(name, *at) for name in names] for at in cuts)
    return max(candidates, key=lambda short: len(set(short)))


def short_name(name: str, most: int = 48) -> str:
    """Return a printable name of at most so many characters."""
    return shortened([printable(name)], most)[0]


def count(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 run`, `2 runs`."""
    return f"{n} {noun if n == 1 else plural or f'{noun}s'}"


class Activity:
    """The description of a running command. This class shows nothing, ActivityLine shows a line."""

    def describe(self, description: str) -> None:
        """Replace the description."""

    def update(self, done: int, total: int, amount: str = "") -> None:
        """Show how many of `total` bytes are done, or the text for it."""


def activity(description: str) -> AbstractContextManager[Activity]:
    """Return a context that shows a line on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext(Activity())
    from sardonyx.cli.activity import ActivityLine

    return ActivityLine(description)

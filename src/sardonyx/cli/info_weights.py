"""Prints the weights that `info` found: one line for each form in which a weight is read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sardonyx.cli.term import clean, heading, paint, say, shape, size, table

LARGEST: Final = 20  # weights that are listed unless all are asked for
_NUMBER: Final = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_OFFSET: Final = re.compile(r" at \d+$")
_STYLES: Final = {0: "cyan", 5: "dim"}
_TITLES: Final = ("weight", "type", "size", "held as", "memory", "source")
_PLACE: Final = len("pack at 147542016")  # that a pack is the source must be seen
_LEAST: Final = ((0, 24), (3, 9), (0, 10))  # columns, and what a cut leaves them


def show(weights: Sequence[Mapping[str, Any]], lists_all: bool) -> None:
    """The list, the largest first, and what was left out."""
    shown = weights if lists_all else weights[:LARGEST]
    heading("each weight" if lists_all else "largest weights")
    rows = [list(_TITLES), *(row for w in shown for row in _rows(w))]
    if all(row[4] in ("", "-") for row in rows[1:]):  # a column of nothing leaves names its room
        rows = [[*row[:4], "", row[5]] for row in rows]
    table(_fitted(rows), right=(2, 4), styles=_STYLES)
    left = weights[len(shown) :]
    if left:
        held = sum(form["anonymous_bytes"] for w in left for form in w["forms"])
        rest = f"{len(left)} more, {size(sum(w['bytes'] for w in left))}, {size(held)} in memory"
        say(paint(f"  {rest}: --all lists them", "dim"))
    say()


def _rows(weight: Mapping[str, Any]) -> Iterator[list[str]]:
    head = [
        clean(weight["name"]) or "-",
        f"{weight['type']}{shape(weight['shape']).replace(' ', '')}",
        size(weight["bytes"]),
    ]
    source = clean(_source(weight))
    forms = weight["forms"]
    if not forms:
        yield [*head, "not read", "", source]
    for form in forms:
        memory = size(form["anonymous_bytes"]) if form["anonymous_bytes"] else "-"
        yield [*head, form["layout"].removeprefix("packed by ") + _shared(form), memory, source]
        head, source = ["", "", ""], ""


def _source(weight: Mapping[str, Any]) -> str:
    if weight["source"] == "embedded":
        return f"model at {weight['offset']}"
    if weight["source"] == "pack":
        return "pack" if weight["offset"] is None else f"pack at {weight['offset']}"
    return str(weight["where"])


def _shared(form: Mapping[str, Any]) -> str:
    """Who else reads the same memory: other nodes, other weights, other sessions."""
    said = []
    if len(form["nodes"]) > 1:
        said.append(f"{len(form['nodes'])} nodes")
    if form["same_as"]:
        said.append(f"same as {clean(form['same_as'][0]) or 'another'}")
    if form["other_programs"]:
        said.append(f"{form['other_programs']} other sessions")
    return f" ({', '.join(said)})" if said else ""


def _fitted(rows: list[list[str]]) -> list[list[str]]:
    """The rows within the width of the terminal: sources are cut first, then names."""
    room = max(80, min(160, shutil.get_terminal_size((120, 24)).columns))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_TITLES))]
    excess = 2 + 2 * (len(_TITLES) - 1) + sum(widths) - room
    place = _PLACE if any(row[5].startswith("pack") for row in rows) else 9
    for column, least in ((5, place), *_LEAST):
        cut = max(0, min(excess, widths[column] - least))
        widths[column] -= cut
        excess -= cut
    names = shortened([row[0] for row in rows], widths[0])
    others = [[_cut(cell, widths[i]) for i, cell in enumerate(row)] for row in rows]
    return [[name, *row[1:]] for name, row in zip(names, others, strict=True)]


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Names in so many characters, cut where most of them stay different.

    The beginning goes first, up to the number of a layer, then a part in the middle.
    """

    def cut(name: str, from_number: bool, n_head: int) -> str:
        if len(name) <= width:
            return name
        number = _NUMBER.search(name) if from_number else None
        if number is not None and number.start() > 2:
            name = f"..{name[number.start() :]}"
        if len(name) <= width:
            return name
        return f"{name[:n_head]}..{name[n_head + 2 - width :]}"

    middle = (width - 2) // 2
    heads = sorted(range(4, max(width - 3, 5)), key=lambda n: abs(n - middle))
    tries = (
        [cut(n, from_number, h) for n in names] for h in heads for from_number in (True, False)
    )
    return max(tries, key=lambda made: len(set(made)))


def _cut(text: str, width: int) -> str:
    """A text in so many characters; the offset at its end stays."""
    if len(text) <= width:
        return text
    offset = _OFFSET.search(text)
    end = offset.group() if offset is not None and len(offset.group()) <= width + 1 else ""
    n_begin = width - 2 - len(end)
    return f"{text[:n_begin]}..{end}" if n_begin > 2 else end.strip()

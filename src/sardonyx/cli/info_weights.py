"""The table of weights of `sardonyx info --weights`: one row for each layout of a weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.units import format_bytes
from sardonyx.cli.console import format_shape, heading, note, printable, say, short_name, table

LARGEST: Final = 20  # weights that are listed without --all
_LONGEST: Final = 120  # characters of a source
_TITLES: Final = ("weight", "type", "size", "held as", "memory", "source")


def show(weights: Sequence[Mapping[str, Any]], lists_all: bool) -> None:
    """Print the weights, which are sorted by size, and a summary of those left out."""
    shown = weights if lists_all else weights[:LARGEST]
    heading("each weight" if lists_all else "largest weights")
    rows = [row for weight in shown for row in _rows(weight)]
    table(rows, _TITLES, right=(2, 4), styles={0: "cyan", 5: "dim"}, names=(0,))
    rest = weights[len(shown) :]
    if rest:
        held = format_bytes(sum(f["anonymous_bytes"] for w in rest for f in w["forms"]))
        total = format_bytes(sum(w["bytes"] for w in rest))
        note(f"{len(rest)} more, {total}, {held} in memory: --all lists them")
    say()


def _rows(weight: Mapping[str, Any]) -> Iterator[list[str]]:
    first = [
        printable(weight["name"]) or "-",
        f"{weight['type']}{format_shape(weight['shape']).replace(' ', '')}",
        format_bytes(weight["bytes"]),
    ]
    source = short_name(_source(weight), _LONGEST)
    if not weight["forms"]:
        yield [*first, "not read", "", source]
    for form in weight["forms"]:
        memory = format_bytes(form["anonymous_bytes"]) if form["anonymous_bytes"] else "-"
        yield [*first, form["layout"].removeprefix("packed by ") + _shared(form), memory, source]
        first, source = ["", "", ""], ""


def _source(weight: Mapping[str, Any]) -> str:
    if weight["source"] == "embedded":
        return f"model at {weight['offset']}"
    if weight["source"] == "pack":
        return "pack" if weight["offset"] is None else f"pack at {weight['offset']}"
    return str(weight["where"])


def _shared(form: Mapping[str, Any]) -> str:
    """Return who else reads the same memory: other nodes, weights and sessions."""
    users = []
    if len(form["nodes"]) > 1:
        users.append(f"{len(form['nodes'])} nodes")
    if form["same_as"]:
        users.append(f"same as {printable(form['same_as'][0]) or 'another'}")
    if form["other_programs"]:
        users.append(f"{form['other_programs']} other sessions")
    return f" ({', '.join(users)})" if users else ""

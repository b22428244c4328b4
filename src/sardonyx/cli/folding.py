"""Tables of inputs and outputs in which those of all layers share a row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sardonyx.cli.console import format_shape, printable
from sardonyx.cli.inputs import expression

_NUMBER: Final = re.compile(r"\d+")
_MIN_FOLDED: Final = 4  # in one row

Facts = Mapping[str, Any]  # name, type, shape


def argument_rows(arguments: Sequence[Facts], folds: bool = True) -> list[list[str]]:
    """Return name, type, shape and how many there are of each input or output, or of alike ones."""
    groups = folded(arguments)
    if not folds or len(groups) == len(arguments):
        return [_row(argument) for argument in arguments]
    return [
        [title, *_row(group[0])[1:], f"{len(group)} of them" if len(group) > 1 else ""]
        for title, group in groups
    ]


def folded(arguments: Sequence[Facts]) -> list[tuple[str, list[Facts]]]:
    """Return a title and its inputs or outputs: of one type and shape, with one number that varies.

    `past.0.key` to `past.11.key` become `past.{0..11}.key`.
    """
    groups: dict[Any, list[Facts]] = {}
    for argument in arguments:
        shape = argument.get("shape")
        key = None if shape is None else tuple(map(_canonical, shape))
        pattern = _NUMBER.sub("#", argument["name"])
        groups.setdefault((pattern, argument["type"], key), []).append(argument)
    rows: list[tuple[str, list[Facts]]] = []
    for group in groups.values():
        title = _title([a["name"] for a in group])
        rows += [(title, group)] if title else [(printable(a["name"]), [a]) for a in group]
    return rows


def _title(names: Sequence[str]) -> str:
    """Return names that differ in one number as one; empty if they are few or differ more."""
    numbers = [_NUMBER.findall(name) for name in names]
    varying = [i for i, each in enumerate(zip(*numbers, strict=True)) if len(set(each)) > 1]
    if len(names) < _MIN_FOLDED or len(varying) != 1:
        return ""
    first, last = names[0], numbers[-1][varying[0]]
    match = list(_NUMBER.finditer(first))[varying[0]]
    return printable(f"{first[: match.start()]}{{{match[0]}..{last}}}{first[match.end() :]}")


def _row(argument: Facts) -> list[str]:
    return [printable(argument["name"]), argument["type"], format_shape(argument["shape"])]


def _canonical(dim: object) -> object:
    """Return a dim, or an expression that is equal for `past + new` and `new + past`."""
    if not isinstance(dim, str) or dim.isidentifier():
        return dim
    return expression(dim) or dim

"""How objects look in a notebook: a title and a table, in the notebook's own colours."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.printable import printable

MAX_ROWS: Final = 40  # rows of a table
_BOX: Final = (
    "display:inline-block;border:1px solid rgba(128,128,128,.35);border-radius:8px;"
    "padding:8px 12px;font:13px system-ui,sans-serif;max-width:100%;overflow-x:auto"
)
_CELL: Final = "text-align:left;padding:2px 14px 2px 0;background:none;border:0;vertical-align:top"


def panel(title: str, remark: str, *tables: Iterable[Sequence[object]]) -> str:
    """Return HTML: a title with a remark, and tables, of which each has at most MAX_ROWS rows."""
    head = f"<b>{_text(title)}</b> <span style='opacity:.65'>{_text(remark)}</span>"
    return f"<div style='{_BOX}'>{head}{''.join(map(_table, tables))}</div>"


def _table(rows: Iterable[Sequence[object]]) -> str:
    all_rows = list(rows)
    lines = "".join(_line(row) for row in all_rows[:MAX_ROWS])
    if len(all_rows) > MAX_ROWS:
        lines += _line([f"and {len(all_rows) - MAX_ROWS} more"])
    return f"<table style='margin:6px 0 0;border:0'>{lines}</table>" if lines else ""


def _line(row: Sequence[object]) -> str:
    first, *rest = row
    cells = f"<th style='{_CELL};font-weight:600'>{_text(first)}</th>"
    cells += "".join(f"<td style='{_CELL}'>{_text(cell)}</td>" for cell in rest)
    return f"<tr style='background:none'>{cells}</tr>"


def _text(content: object) -> str:
    return html.escape(printable(str(content)))


def changed(options: object, entries: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that differ from the defaults of their class, and config entries."""
    defaults = type(options).__dict__
    public = {k: v for k, v in vars(options).items() if not k.startswith("_")}
    return {k: v for k, v in public.items() if v != defaults.get(k)} | dict(entries)


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Return `Name(option=value, key='value')`."""
    return f"{name}({', '.join(f'{k}={_value(v)}' for k, v in arguments.items())})"


def _value(value: Any) -> str:
    return value.name if hasattr(value, "name") else repr(value)

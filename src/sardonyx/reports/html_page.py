"""HTML pages of reports: one file each, with one look, that needs no network.

Scripts and styles are those of the page itself: its content security policy allows nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sardonyx.base.printable import printable

FOLDER: Final = pathlib.Path(__file__).parent / "page"
# Inside a script element only these characters can end it or begin a comment.
_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def document(
    title: str, summary: str, body: Sequence[str], *, scripts: Sequence[str] = (), data: Any = None
) -> str:
    """Return a whole page: a title, a line below it, sections, and scripts that draw `data`."""
    style = stylesheet() + (FOLDER / "report.css").read_text("utf-8")
    script = "".join((FOLDER / name).read_text("utf-8") for name in scripts)
    allowed = f" script-src {content_hash(script)};" if script else ""
    policy = f"default-src 'none';{allowed} style-src {content_hash(style)}"
    parts = [
        head(text(title), policy, style),
        f"<header><h1>{text(title)}</h1><p>{text(summary)}</p></header><main>",
        *body,
        "</main>",
    ]
    if script:
        parts.append(f'<script type="application/json" id="data">{inline_json(data)}</script>')
        parts.append(f"<script>{script}</script>")
    return "".join([*parts, "</body></html>\n"])


def head(title: str, policy: str, style: str) -> str:
    """Return a page up to the beginning of its body."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{title}</title><style>{style}</style></head><body>"
    )


def stylesheet() -> str:
    """Return the style that all pages share."""
    return (FOLDER / "plan.css").read_text("utf-8")


def content_hash(content: str) -> str:
    """Return a source of the content security policy that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def inline_json(data: Any) -> str:
    """Return JSON that may stand in a script element."""
    return json.dumps(data, separators=(",", ":")).translate(_ESCAPES)


def text(content: object) -> str:
    """Return a text, which may come from a model, for HTML."""
    return html.escape(printable(str(content)))


def section(title: str, *content: str) -> str:
    """Return a section with a heading."""
    return f"<section><h2>{text(title)}</h2>{''.join(content)}</section>"


def paragraph(content: str, kind: str = "") -> str:
    """Return a paragraph."""
    return f'<p class="{kind}">{text(content)}</p>' if kind else f"<p>{text(content)}</p>"


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Return cards with a figure and what it is."""
    cards = (f"<b>{text(value)}</b><span>{text(what)}</span>" for value, what in pairs)
    return f'<div class="figures">{"".join(f"<div class=figure>{c}</div>" for c in cards)}</div>'


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Return a table; the columns in `numbers` are aligned at the right."""
    kinds = [' class="number"' if i in set(numbers) else "" for i in range(len(titles))]

    def line(tag: str, cells: Sequence[str]) -> str:
        inside = (
            f'<{tag}{kind} title="{text(cell)}">{text(cell)}</{tag}>'
            for kind, cell in zip(kinds, cells, strict=True)
        )
        return f"<tr>{''.join(inside)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f'<div class="scroll"><table class="plain"><thead>{line("th", titles)}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )

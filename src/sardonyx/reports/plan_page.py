"""The page of memory timelines: one file with its data, which needs no network.

`sardonyx plan --html` writes one with a timeline per execution order, reports of training steps one
with a timeline per graph.
"""

from __future__ import annotations

import bisect
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.printable import format_shape, printable
from sardonyx.base.records import frozen
from sardonyx.reports.html_page import FOLDER, content_hash, inline_json, stylesheet
from sardonyx.reports.timeline import OWN, Tensor, Timeline, takes_over

_SCRIPTS: Final = ("figures.js", "chart.js", "plan.js")
_LONGEST: Final = 200  # characters of a name
_KINDS: Final = ("value", "scratch", "output", "part")


@frozen
class PageContent:
    """What a page shows: timelines, named by their `order`, of which one is shown at a time."""

    title: str
    shapes: Mapping[str, Sequence[int]]  # of inputs, under the title
    choice: str  # what the timelines differ in: "Orders"
    default: str  # the name of the one that is marked as such
    timelines: Iterable[Timeline]
    advice: Sequence[str]


def page(planned: PageContent) -> str:
    """Return the whole page."""
    style = stylesheet()
    script = "".join((FOLDER / name).read_text("utf-8") for name in _SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {content_hash(script)}; style-src {content_hash(style)}"
    )
    parts = {
        "policy": policy,
        "title": html.escape(_text(planned.title)),
        "choice": html.escape(planned.choice),
        "style": style,
        "data": inline_json(content(planned)),
        "script": script,
    }
    pieces = (FOLDER / "plan.html").read_text("utf-8").split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:  # one pass: the values may contain braces themselves
        key, _, rest = piece.partition("}}")
        filled += [parts[key], rest]
    return "".join(filled)


def _text(name: str) -> str:
    name = printable(name)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."


class _Texts:
    """A table of texts by number: most texts occur in every order."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(_text(text), len(self.numbers))


def content(planned: PageContent) -> dict[str, Any]:
    """Return the data that the script draws."""
    texts = _Texts()
    orders = [_order(t, texts) for t in planned.timelines]
    return {
        "shapes": ", ".join(f"{_text(n)} {format_shape(s)}" for n, s in planned.shapes.items()),
        "default": planned.default,
        "orders": orders,
        "advice": list(planned.advice),
        "texts": list(texts.numbers),
    }


def _order(order: Timeline, texts: _Texts) -> dict[str, Any]:
    # Tensors are drawn over steps: without any, there is nothing to draw.
    shown = (t for t in order.tensors if t.kind != "input" and t.bytes and order.steps)
    # Parts of an output outside of the arena are drawn as that output.
    own = [t for t in shown if t.kind != "part" or t.offset != OWN]
    heights = _heights(own, order.arena_bytes)
    handed = _handed_over(own)
    return {
        "name": order.order,
        "peak": order.peak_bytes,
        "arena": order.arena_bytes,
        "bound": order.lower_bound,
        "outputs": order.output_bytes,
        "scratch": order.scratch_bytes,
        "threads": order.local_bytes,
        "peakStep": order.peak_step,
        "needs": list(order.needs),
        "steps": [[texts(s.name), texts(s.op), texts(s.kernel)] for s in order.steps],
        "tensors": [
            [
                texts(t.name),
                _KINDS.index(t.kind),
                texts(_type(t)),
                t.bytes,
                t.made,
                t.start,
                t.end,
                t.end - (i in handed),  # the last step in which it is drawn
                heights[i],
                texts(t.maker),
                t.idle,
            ]
            for i, t in enumerate(own)
        ],
    }


def _type(tensor: Tensor) -> str:
    if tensor.kind == "scratch":
        return "scratch"
    return f"{tensor.dtype} {format_shape(tensor.shape)}".strip()


def _handed_over(tensors: Sequence[Tensor]) -> set[int]:
    """Return tensors whose memory another reuses in place in their last step, which draws it."""
    ending: dict[tuple[int, int, int], list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor.offset != OWN:
            ending.setdefault((tensor.part, tensor.offset, tensor.end), []).append(i)
    return {
        i
        for new in tensors
        if new.offset != OWN
        for i in ending.get((new.part, new.offset, new.start), ())
        if takes_over(new, tensors[i])
    }


def _heights(tensors: Sequence[Tensor], arena_bytes: int) -> list[int]:
    """Return where each is drawn: at its offset, or above the arena in the lowest free gap."""
    heights = [t.offset for t in tensors]
    alive: list[tuple[int, int, int]] = []  # begin, end, last step: sorted
    outside = [i for i, t in enumerate(tensors) if t.offset == OWN]
    for i in sorted(outside, key=lambda i: tensors[i].start):
        tensor = tensors[i]
        alive = [a for a in alive if a[2] >= tensor.start]
        at = 0
        for begin, end, _ in alive:
            if begin - at >= tensor.bytes:
                break
            at = end
        bisect.insort(alive, (at, at + tensor.bytes, tensor.end))
        heights[i] = arena_bytes + at
    return heights

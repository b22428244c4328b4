"""The page of `sardonyx plan --html`: one file with its data, which asks nothing of a network."""

from __future__ import annotations

import base64
import bisect
import hashlib
import html
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Final

from sardonyx.cli.plan import DEFAULT, Planned
from sardonyx.cli.term import clean, shape
from sardonyx.reports.memory import OWN, Tensor, Timeline, takes_over

_FOLDER: Final = pathlib.Path(__file__).parent / "page"
_SCRIPTS: Final = ("figures.js", "chart.js", "plan.js")
_LONGEST: Final = 200  # characters of a name: a model may have any
_KINDS: Final = ("value", "scratch", "output", "part")
# Inside a script element only these could end it or begin a comment.
_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def page(planned: Planned) -> str:
    """The whole page."""
    style = (_FOLDER / "plan.css").read_text("utf-8")
    script = "".join((_FOLDER / name).read_text("utf-8") for name in _SCRIPTS)
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}"
    data = json.dumps(content(planned), separators=(",", ":")).translate(_ESCAPES)
    parts = {
        "policy": policy,
        "title": html.escape(f"Memory of {_text(os.path.basename(planned.model))}"),
        "style": style,
        "data": data,
        "script": script,
    }
    pieces = (_FOLDER / "plan.html").read_text("utf-8").split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:  # what is filled in is never looked at again: it may hold braces
        key, _, rest = piece.partition("}}")
        filled += [parts[key], rest]
    return "".join(filled)


def _hash(text: str) -> str:
    """A source of the content security policy: this text and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(name: str) -> str:
    name = clean(name)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."


class _Texts:
    """A table of texts: most stand in every order."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(_text(text), len(self.numbers))


def content(planned: Planned) -> dict[str, Any]:
    """What the script draws."""
    texts = _Texts()
    orders = [_order(t, texts) for t in planned.timelines.values()]
    return {
        "shapes": ", ".join(f"{_text(n)} {shape(s)}" for n, s in planned.shapes.items()),
        "default": DEFAULT,
        "orders": orders,
        "advice": [a.text for a in planned.advice],
        "texts": list(texts.numbers),
    }


def _order(found: Timeline, texts: _Texts) -> dict[str, Any]:
    # Without a step there is nothing to draw a tensor over.
    shown = (t for t in found.tensors if t.kind != "input" and t.bytes and found.steps)
    own = [t for t in shown if t.kind != "part" or t.offset != OWN]  # not what outputs hold before
    heights = _heights(own, found.arena_bytes)
    handed = _handed_over(own)
    return {
        "name": found.order,
        "peak": found.peak_bytes,
        "arena": found.arena_bytes,
        "bound": found.lower_bound,
        "outputs": found.output_bytes,
        "scratch": found.scratch_bytes,
        "threads": found.local_bytes,
        "peakStep": found.peak_step,
        "needs": list(found.needs),
        "steps": [[texts(s.name), texts(s.op), texts(s.kernel)] for s in found.steps],
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
    return f"{tensor.dtype} {shape(tensor.shape)}".strip()


def _handed_over(tensors: Sequence[Tensor]) -> set[int]:
    """Tensors whose place another takes over in their last step, which draws that step."""
    places: dict[tuple[int, int, int], list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor.offset != OWN:
            places.setdefault((tensor.part, tensor.offset, tensor.end), []).append(i)
    return {
        i
        for new in tensors
        if new.offset != OWN
        for i in places.get((new.part, new.offset, new.start), ())
        if takes_over(new, tensors[i])
    }


def _heights(tensors: Sequence[Tensor], arena_bytes: int) -> list[int]:
    """Where each is drawn: at its offset, or above the arena in the lowest gap at its time."""
    heights = [t.offset for t in tensors]
    alive: list[tuple[int, int, int]] = []  # begin, end, last step: by place
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

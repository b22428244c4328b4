"""Charts of report pages, as SVG elements without a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.reports.html_page import text

N_HUES: Final = 9  # classes h0 to h8 of the style; h9 is for the rest
_WIDTH: Final = 1000
_NAME: Final = 210  # pixels for names at the left of bars
_ROW: Final = 22
_LONGEST: Final = 30  # characters of a name


@frozen
class Bar:
    """A row of a bar chart."""

    name: str
    length: float
    text: str  # at the right of the bar
    kind: str  # a class of the style
    part: float = 0.0  # the length of a darker part of the bar
    spread: Sequence[
        float
    ] = ()  # single measurements, drawn as dots with a line from least to most
    title: str = ""


@frozen
class Point:
    """A step in a roofline plot."""

    intensity: float  # operations per byte
    rate: float  # operations per second
    share: float  # of the time, from 0 to 1
    kind: str
    title: str


@frozen
class Span:
    """A stage in a waterfall."""

    name: str
    begin: float
    end: float
    text: str
    kind: str


def hues(names: Sequence[str]) -> dict[str, str]:
    """Return a class of the style for each name: the first ones have colours of their own."""
    return {name: f"h{min(i, N_HUES)}" for i, name in enumerate(names)}


def bars(rows: Sequence[Bar]) -> str:
    """Return horizontal bars on one scale from 0."""
    longest = max((max(row.length, *row.spread, 0.0) for row in rows), default=0.0) or 1.0
    scale = (_WIDTH - _NAME - 190) / longest
    parts = []
    for i, row in enumerate(rows):
        y = 4 + i * _ROW
        parts.append(
            _name(row.name, y) + f'<rect class="{row.kind}" x="{_NAME}" y="{y}" height="15" rx="2" '
            f'width="{max(row.length * scale, 1):.1f}"><title>{text(row.title or row.text)}</title>'
            "</rect>"
        )
        if row.part:
            parts.append(_rect("ideal", _NAME, y, row.part * scale, 15))
        end = max(row.length, *row.spread, 0.0)
        parts += _spread(row.spread, y + 7.5, scale)
        parts.append(
            f'<text x="{_NAME + end * scale + 8:.1f}" y="{y + 12}">{text(row.text)}</text>'
        )
    return _svg(4 + len(rows) * _ROW, parts, "bars")


def _spread(values: Sequence[float], y: float, scale: float) -> list[str]:
    if len(values) < 2:
        return []
    low, high = (_NAME + f(values) * scale for f in (min, max))
    line = f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>'
    dots = (f'<circle class="dot" cx="{_NAME + v * scale:.1f}" cy="{y}" r="2.5"/>' for v in values)
    return [line, *dots]


def waterfall(spans: Sequence[Span]) -> str:
    """Return spans below each other, each at its time."""
    first, last = min(s.begin for s in spans), max(s.end for s in spans)
    scale = (_WIDTH - _NAME - 20) / ((last - first) or 1.0)
    parts = []
    for i, span in enumerate(spans):
        y, x = 4 + i * _ROW, _NAME + (span.begin - first) * scale
        width = max((span.end - span.begin) * scale, 1.0)
        # The text is beside the bar if there is space for it, else in front of it or inside.
        beside, anchor = x + width + 6, "start"
        if beside > 0.55 * _WIDTH:
            beside, anchor = (x - 6, "end") if x > 0.55 * _WIDTH else (x + 8, "start")
        kind = "name" if beside > x and beside < x + width else ""
        line = f'x1="{_NAME}" x2="{_WIDTH - 20}" y1="{y + 18}" y2="{y + 18}"'
        parts.append(
            _name(span.name, y)
            + f'<line class="grid" {line}/>'
            + _rect(span.kind, x, y, width, 15)
            + f'<text class="{kind}" x="{beside:.1f}" y="{y + 12}" text-anchor="{anchor}">'
            + f"{text(span.text)}</text>"
        )
    return _svg(4 + len(spans) * _ROW, parts, "waterfall")


def strip(spans: Sequence[Span]) -> str:
    """Return spans one after the other on a line."""
    first, last = min(s.begin for s in spans), max(s.end for s in spans)
    scale = _WIDTH / ((last - first) or 1.0)
    parts = []
    for span in spans:
        width = max((span.end - span.begin) * scale, 0.3)
        parts.append(
            f'<rect class="{span.kind}" x="{(span.begin - first) * scale:.2f}" y="2" '
            f'width="{width:.2f}" height="30"><title>{text(span.text)}</title></rect>'
        )
    return _svg(34, parts, "steps of a run")


def legend(kinds: Mapping[str, str]) -> str:
    """Return names beside their colours, in as many lines as they need."""
    parts, x, y = [], 0.0, 0
    for name, kind in kinds.items():
        width = 26 + 6.6 * len(name)
        if x + width > _WIDTH:
            x, y = 0.0, y + 18
        parts.append(_rect(kind, x, y + 3, 11, 11))
        parts.append(f'<text x="{x + 16:.1f}" y="{y + 13}">{text(name)}</text>')
        x += width
    return _svg(y + 20, parts, "legend")


def roofline(
    points: Sequence[Point], rates: Mapping[str, float], n_bytes_per_s: float, height: int = 400
) -> str:
    """Return steps by operations per byte and per second, below the limits of the machine."""
    left, bottom, right = 70, 40, _WIDTH - 20
    xs = [p.intensity for p in points] + [min(rates.values()) / n_bytes_per_s]
    low, high = math.floor(math.log10(min(xs)) - 0.2), math.ceil(math.log10(max(xs)) + 0.2)
    top = math.log10(max(rates.values())) + 0.25
    base = math.floor(min([math.log10(p.rate) for p in points] + [top - 2]))
    x_of = _scale(low, high, left, right)
    y_of = _scale(base, top, height - bottom, 12)
    parts = _grid(low, high, base, top, (x_of, y_of), (left, right, height - bottom))
    for name, rate in rates.items():
        ridge = rate / n_bytes_per_s
        y, start = y_of(math.log10(rate)), max(x_of(math.log10(ridge)), left)
        slope = _slope(ridge, rate, low, base, n_bytes_per_s)
        sloped = f"{x_of(slope[0]):.1f},{y_of(slope[1]):.1f} " if start > left else ""
        parts.append(
            f'<polyline class="limit" points="{sloped}{start:.1f},{y:.1f} {right},{y:.1f}"/>'
        )
        label = f"{name}: {rate / 1e9:,.0f} GFLOP/s"
        parts.append(f'<text x="{right}" y="{y - 4:.1f}" text-anchor="end">{text(label)}</text>')
    for point in sorted(points, key=lambda p: -p.share):
        x, y = x_of(math.log10(point.intensity)), y_of(math.log10(point.rate))
        radius = 3 + 22 * math.sqrt(point.share)
        parts.append(
            f'<circle class="{point.kind} on" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" '
            f'fill-opacity="0.8"><title>{text(point.title)}</title></circle>'
        )
    return _svg(height, parts, "roofline")


def _slope(
    ridge: float, rate: float, low: float, base: float, n_bytes_per_s: float
) -> tuple[float, float]:
    """Return where the line of the memory bandwidth enters the plot, in powers of ten."""
    at_left = low + math.log10(n_bytes_per_s)
    return (low, at_left) if at_left >= base else (base - math.log10(n_bytes_per_s), base)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _grid(
    low: int,
    high: int,
    base: int,
    top: float,
    to: tuple[Callable[[float], float], Callable[[float], float]],
    edges: tuple[float, float, float],
) -> list[str]:
    left, right, bottom = edges
    parts = []
    for power in range(low, high + 1):
        x = to[0](power)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="{bottom}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{10**power:g}</text>'
        )
    for power in range(base, math.floor(top) + 1):
        y = to[1](power)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = f"{10 ** (power - 9):g}"
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    middle = (left + right) / 2
    parts.append(
        f'<text x="{middle}" y="{bottom + 34}" text-anchor="middle">operations per byte</text>'
    )
    rotation = f'transform="translate(14 {bottom / 2}) rotate(-90)"'
    parts.append(f'<text {rotation} text-anchor="middle">GFLOP/s</text>')
    return parts


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="2"/>'
    )


def _name(name: str, y: float) -> str:
    """Return the name of a row, at its left."""
    return (
        f'<text class="name" x="{_NAME - 8}" y="{y + 12}" text-anchor="end">{_short(name)}'
        f"<title>{text(name)}</title></text>"
    )


def _short(name: str) -> str:
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST // 2 - 1]}..{name[1 - _LONGEST // 2 :]}"
    return text(name)


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<div class="wide"><svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg></div>'
    )

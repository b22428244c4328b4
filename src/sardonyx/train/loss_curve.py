"""Loss curves as SVG images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from sardonyx.base.shared_store import Array

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 24, 40  # margins
_MAX_POINTS: Final = 1000  # of a line; longer ones are averaged
_WINDOW: Final = 20  # a smoothed point is the mean of the last 1/20 of the steps
_TICKS: Final = 5
_LARGEST: Final = 1e300
_STYLE: Final = 'font-family="sans-serif" font-size="11" fill="none"'


def loss_curve(
    losses: Sequence[float], evaluations: Sequence[Mapping[str, float]] = (), title: str = "loss"
) -> str:
    """Return an SVG image: the loss of each step, its moving mean, and evaluated losses."""
    values = _drawable(losses)
    steps = np.arange(1, len(values) + 1, dtype=np.float64)
    evaluated = _drawable([e["loss"] for e in evaluations])
    validation = list(zip((e["step"] for e in evaluations), evaluated.tolist(), strict=True))
    heights = [*values.tolist(), *evaluated.tolist()]
    finite = [h for h in heights if math.isfinite(h)] or [0.0, 1.0]
    axes = _Axes(max(len(values), 1), min(finite), max(finite))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_STYLE}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="16" fill="black">{_escaped(title)}</text>',
        *axes.ticks(),
        axes.line(steps, values, "#b8cce4", 1),
        axes.line(steps, _smoothed(values), "#1f4e9c", 2),
    ]
    if validation:
        at = np.array([step for step, _ in validation], np.float64)
        parts.append(axes.line(at, evaluated, "#c0392b", 2))
        parts += [axes.dot(x, y, "#c0392b") for x, y in validation if math.isfinite(y)]
    parts.append(
        _legend([("#1f4e9c", "training"), ("#c0392b", "validation")][: 1 + bool(validation)])
    )
    return "\n".join([*parts, "</svg>\n"])


class _Axes:
    """The mapping from steps and losses to points of the image."""

    def __init__(self, n_steps: int, low: float, high: float) -> None:
        margin = (high - low or 1.0) * 0.05
        self._low, self._high = low - margin, high + margin
        self._n_steps = n_steps

    def x(self, step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / self._n_steps

    def y(self, loss: float) -> float:
        share = (loss - self._low) / (self._high - self._low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    def line(self, steps: Array, losses: Array, color: str, width: int) -> str:
        """Return a line through points, averaged where there are too many; NaN is left out."""
        chunk = -(-len(losses) // _MAX_POINTS) or 1
        points = []
        for begin in range(0, len(losses), chunk):
            step = float(steps[begin : begin + chunk].mean())
            part = losses[begin : begin + chunk]
            part = part[np.isfinite(part)]
            if len(part):
                loss = float(part.mean())
                points.append(f"{self.x(step):.1f},{self.y(loss):.1f}")
        return f'<polyline points="{" ".join(points)}" stroke="{color}" stroke-width="{width}"/>'

    def dot(self, step: float, loss: float, color: str) -> str:
        """Return a point."""
        return f'<circle cx="{self.x(step):.1f}" cy="{self.y(loss):.1f}" r="3" fill="{color}"/>'

    def ticks(self) -> list[str]:
        """Return the grid with its labels."""
        parts, bottom = [], _HEIGHT - _BOTTOM
        for i in range(_TICKS):
            loss = self._low + (self._high - self._low) * i / (_TICKS - 1)
            y, step = self.y(loss), round(self._n_steps * i / (_TICKS - 1))
            parts.append(
                f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#444">'
                f"{loss:.3g}</text>"
                f'<text x="{self.x(step):.1f}" y="{bottom + 16}" text-anchor="middle" fill="#444">'
                f"{step}</text>"
            )
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        label = f'<text x="{middle}" y="{bottom + 32}" text-anchor="middle" fill="#444">step</text>'
        return [*parts, label]


def _drawable(losses: Sequence[float]) -> Array:
    """Return losses whose sums are finite; those that are not finite are NaN."""
    values = np.array(losses, np.float64)
    values[~np.isfinite(values)] = np.nan
    return np.clip(values, -_LARGEST, _LARGEST)


def _smoothed(values: Array) -> Array:
    """Return the moving average over a window of preceding values; NaN does not count."""
    if not len(values):
        return values
    window = max(1, len(values) // _WINDOW)
    is_number = np.isfinite(values)
    sums, counts = (
        np.concatenate([[0.0], np.cumsum(a)]) for a in (np.where(is_number, values, 0), is_number)
    )
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    n = counts[ends] - counts[begins]
    return np.where(n > 0, (sums[ends] - sums[begins]) / np.maximum(n, 1), np.nan)


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    right = _WIDTH - _RIGHT
    return "".join(
        f'<text x="{right}" y="{16 + 14 * i}" text-anchor="end" fill="{color}">{name}</text>'
        for i, (color, name) in enumerate(entries)
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")

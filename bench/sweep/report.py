"""The results of a sweep as a table and as a plot."""

from __future__ import annotations

import html
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from bench.sweep.measure import Result

FASTEST_MS: Final = 0.020  # faster cases measure the call overhead, not the kernel
GOALS: Final = (0.9, 1.0)
_WIDTH, _HEIGHT = 900, 420
_LOW, _HIGH = 0.1, 30.0  # ratios on the axis


def load(path: Path) -> list[Result]:
    """Return the results of a file, the best of several measurements of a case."""
    best: dict[tuple[str, int], Result] = {}
    if not path.exists():
        return []
    for line in path.read_text().splitlines():
        try:
            result = Result(**json.loads(line))
        except json.JSONDecodeError:  # the last line of a run that was killed
            continue
        at = result.key, result.threads
        old = best.get(at)
        if old is None or (result.ratio("onnxruntime") or 0) > (old.ratio("onnxruntime") or 0):
            best[at] = result
    return list(best.values())


def judged(results: Iterable[Result], rival: str) -> list[tuple[float, Result]]:
    """Return ratios of the cases that both run and that take long enough, slowest first."""
    found = []
    for result in results:
        ratio, times = result.ratio(rival), [t for t in result.times.values() if t]
        if ratio is not None and max(times) >= FASTEST_MS:
            found.append((ratio, result))
    return sorted(found, key=lambda pair: pair[0])


def summary(results: Sequence[Result], rivals: Sequence[str]) -> str:
    """Return counts and means per rival."""
    lines = []
    for rival in rivals:
        ratios = [ratio for ratio, _ in judged(results, rival)]
        if not ratios:
            continue
        under = ", ".join(f"{sum(r < goal for r in ratios)} under {goal}x" for goal in GOALS)
        share = sum(r >= 1 for r in ratios) / len(ratios)
        mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
        lines.append(
            f"{rival}: {len(ratios)} cases, geometric mean {mean:.2f}x, "
            f"{share:.1%} at 1.0x or more, {under}, least {ratios[0]:.2f}x"
        )
    lines.append(
        f"{sum(bool(r.python_steps) for r in results)} cases with steps in Python, "
        f"{sum(bool(r.error) for r in results)} refused, "
        f"{sum(r.differs > 0 for r in results)} differ from onnxruntime"
    )
    return "\n".join(lines)


def table(results: Sequence[Result], rival: str, count: int) -> str:
    """Return the slowest cases, one per line."""
    lines = []
    for ratio, r in judged(results, rival)[:count]:
        note = f"{r.python_steps} in Python" if r.python_steps else ""
        lines.append(
            f"{ratio:6.2f}x {r.times['sardonyx']:9.3f} ms {r.times[rival]:9.3f} ms  {r.threads} "
            f"{r.name[:110]}  [{r.source}] {note}"
        )
    return "\n".join(lines)


def svg(results: Sequence[Result], rival: str) -> str:
    """Return a plot of all ratios over the time of the rival, both on logarithmic axes."""
    pairs = judged(results, rival)
    times = [r.times[rival] or 1.0 for _, r in pairs] or [1.0]
    first, last = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def x(ms: float) -> float:
        return 60 + (_WIDTH - 80) * (math.log10(ms) - first) / max(1, last - first)

    def y(ratio: float) -> float:
        inside = min(max(ratio, _LOW), _HIGH)
        share = math.log(inside / _LOW) / math.log(_HIGH / _LOW)
        return (_HEIGHT - 40) * (1 - share) + 10

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"',
        'font-family="sans-serif" font-size="12"><style>text{fill:#444}line{stroke:#bbb}',
        "@media(prefers-color-scheme:dark){text{fill:#ccc}line{stroke:#555}}</style>",
    ]
    for tick in (0.1, 0.3, 1, 3, 10, 30):
        width = 2 if tick == 1 else 0.5
        parts.append(
            f'<line x1="60" x2="{_WIDTH - 20}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
            f'stroke-width="{width}"/>'
        )
        parts.append(f'<text x="52" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}x</text>')
    parts += [
        f'<text x="{x(10.0**power):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">'
        f"{10.0**power:g} ms</text>"
        for power in range(first, last + 1)
    ]
    for ratio, r in pairs:
        color = "#c33" if ratio < GOALS[0] else "#d90" if ratio < 1 else "#286"
        title = html.escape(f"{ratio:.2f}x {r.name}, {r.threads} threads")
        parts.append(
            f'<circle cx="{x(r.times[rival] or 1):.1f}" cy="{y(ratio):.1f}" r="2.5" fill="{color}" '
            f'fill-opacity="0.6"><title>{title}</title></circle>'
        )
    return "\n".join([*parts, "</svg>"])

"""The HTML report of a search: one file without scripts, with plots of layers and trials."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Sequence
from typing import Final

from sardonyx.base.printable import printable
from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.quantization.search.outcome import FLOAT, LayerResult, Outcome, Trial, percent
from sardonyx.quantization.search.schemes import COVERAGES
from sardonyx.reports.html_page import content_hash, stylesheet

_STYLE: Final = """
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 10px; }
.figure { padding: 8px 10px; border: 1px solid var(--line); border-radius: 8px;
  background: var(--panel); }
.figure b { display: block; font-size: 19px; }
.figure span { color: var(--soft); font-size: 12px; }
.refused { color: var(--peak); font-weight: 600; }
svg { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg.scatter { max-width: 820px; margin-bottom: 8px; }
.scroll svg { min-width: 760px; }
tr.chosen td { font-weight: 600; }
svg text { fill: var(--soft); }
svg .name { fill: var(--ink); font-family: ui-monospace, monospace; }
svg .grid { stroke: var(--line); }
svg .before { fill: var(--other); }
svg .after { fill: var(--accent); }
svg .float { fill: var(--peak); }
svg .limit { stroke: var(--peak); stroke-dasharray: 4 3; }
td.long { white-space: normal; min-width: 200px; }
tbody tr { cursor: default; }
"""
_ROW: Final = 18  # of a layer in a plot
_NAME_WIDTH, _BAR_WIDTH, _GAP = 330, 235, 24
_TOP: Final = 26
_MAX_LAYERS: Final = 80  # in plots; the table has all
_LONGEST: Final = 52  # characters of a name
_PLOT: Final = (820, 320)
_WHOLE_TICKS: Final = 4.0  # of a speed, for which ticks are whole numbers
_MIN_ERROR: Final = 1e-6  # that the plot shows
_MARGINS: Final = (64, 20, 16, 44)  # left, right, top, bottom


def page(outcome: Outcome) -> str:
    """Return the whole page."""
    style = stylesheet() + _STYLE
    title = html.escape(printable(f"Quantization of {os.path.basename(outcome.model)}"))
    policy = f"default-src 'none'; style-src {content_hash(style)}"
    body = [
        f"<header><h1>{title}</h1><p>{_text(_summary(outcome))}</p></header><main>",
        _result(outcome),
        _section(
            "What was tried",
            "<p>Error and loss are those on samples that calibrate, but where a model was checked "
            f"on those held out.</p>{_scatter(outcome)}{_trials(outcome.trials)}",
        ),
    ]
    if outcome.layers:
        plot = f'<div class="scroll">{_legend()}{_bars(outcome.layers)}</div>'
        body.insert(2, _section("Layers", plot))
        body.append(_section("All layers, and why", _layers(outcome.layers)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{title}</title><style>{style}</style></head><body>"
        + "".join(body)
        + "</main></body></html>\n"
    )


def _summary(outcome: Outcome) -> str:
    return (
        f"Loss: {outcome.metric_text}, at most {outcome.max_loss:.3%}; at least "
        f"{outcome.min_speedup:g} times as fast. {outcome.n_calibrating} samples calibrate, "
        f"{outcome.n_held_out} are held out and check the result. "
        f"{format_seconds(outcome.seconds)} of search."
    )


def _result(outcome: Outcome) -> str:
    if outcome.speed is None or outcome.output is None:
        return f'<p class="refused">No model was written: {_text(outcome.refusal)}.</p>'
    ratio = outcome.bytes_before / max(outcome.bytes_after, 1)
    before, after = (format_bytes(n) for n in (outcome.bytes_before, outcome.bytes_after))
    times = [format_seconds(s) for s in (outcome.speed.original_s, outcome.speed.candidate_s)]
    figures = [
        (percent(outcome.loss), "lost on samples that were held out"),
        (percent(outcome.error), "relative error of the outputs"),
        (f"{outcome.speed.speedup:.2f}x", f"as fast: {times[0]} before, {times[1]} after"),
        (f"{ratio:.2f}x", f"smaller: {before} before, {after} after"),
    ]
    cells = "".join(
        f'<div class="figure"><b>{_text(value)}</b><span>{_text(text)}</span></div>'
        for value, text in figures
    )
    remarks = "".join(f"<p>{_text(remark)}</p>" for remark in outcome.remarks)
    coverage = outcome.what.partition(",")[0]
    more = f" ({coverage}: {COVERAGES[coverage]})" if coverage in COVERAGES else ""
    what = f"<p>{_text(outcome.output)}: {_text(outcome.what + more)}</p>"
    return f'{what}<div class="figures">{cells}</div>{remarks}'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>"


def _legend() -> str:
    marks = (("before", "original"), ("after", "quantized"), ("float", "stays in floats"))
    parts = "".join(
        f'<rect class="{kind}" x="{150 * i}" y="3" width="11" height="11"/>'
        f'<text x="{150 * i + 16}" y="13">{name}</text>'
        for i, (kind, name) in enumerate(marks)
    )
    return f'<svg viewBox="0 0 1100 18">{parts}</svg>'


def _bars(layers: Sequence[LayerResult]) -> str:
    """Return a row per layer: its error alone, and its size and time before and after."""
    shown = layers
    if len(layers) > _MAX_LAYERS:
        worst = sorted(layers, key=lambda layer: -(layer.error or 0.0))[:_MAX_LAYERS]
        names = {layer.name for layer in worst}
        shown = [layer for layer in layers if layer.name in names]
    columns: tuple[tuple[str, list[tuple[float, float]], Callable[[float], str]], ...] = (
        ("error alone", [(0.0, _finite(x.error)) for x in shown], "{:.2%}".format),
        ("bytes of weights", [(x.bytes_before, x.bytes_after) for x in shown], format_bytes),
        ("time of a run", [(x.seconds_before, x.seconds_after) for x in shown], format_seconds),
    )
    width = _NAME_WIDTH + len(columns) * (_BAR_WIDTH + _GAP)
    height = _TOP + _ROW * len(shown) + 6
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="layers">']
    for i, layer in enumerate(shown):
        y = _TOP + i * _ROW + 12
        name = _short(layer.name)
        parts.append(
            f'<text class="name" x="{_NAME_WIDTH - 10}" y="{y}" text-anchor="end">{_text(name)}'
            f"<title>{_text(layer.name)}</title></text>"
        )
    for i, (title, pairs, form) in enumerate(columns):
        left = _NAME_WIDTH + i * (_BAR_WIDTH + _GAP)
        parts.append(f'<text x="{left}" y="14">{title}</text>')
        floats = [x.choice == FLOAT for x in shown]
        parts += _column(list(zip(pairs, floats, strict=True)), left, form)
    return "".join([*parts, "</svg>"])


def _finite(error: float | None) -> float:
    """Return an error that a bar can show."""
    return error if error is not None and math.isfinite(error) else 0.0


def _column(
    pairs: Sequence[tuple[tuple[float, float], bool]], left: int, form: Callable[[float], str]
) -> list[str]:
    """Return the bars of one figure, before in the back, after in front."""
    most = max((max(pair) for pair, _ in pairs), default=0.0) or 1.0
    parts = [f'<path class="grid" d="M{left} {_TOP - 4}V{_TOP + _ROW * len(pairs)}"/>']
    for i, ((before, after), is_float) in enumerate(pairs):
        y, scale = _TOP + i * _ROW, (_BAR_WIDTH - 60) / most
        kind = "float" if is_float else "after"
        parts.append(
            _bar("before", left, y + 2, before * scale, 13)
            + _bar(kind, left, y + 5, after * scale, 7)
        )
        if after:
            at = left + max(before, after) * scale + 5
            parts.append(f'<text x="{at:.1f}" y="{y + 12}">{_text(form(after))}</text>')
    return parts


def _bar(kind: str, x: float, y: float, width: float, height: int) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width:.1f}" height="{height}"/>'


def _scatter(outcome: Outcome) -> str:
    """Return a plot of the speed and the error of what was timed, with the limits."""
    points = [
        t for t in outcome.trials if t.speedup and t.error is not None and math.isfinite(t.error)
    ]
    if not points:
        return ""
    axes = _Axes(outcome.min_speedup, points)
    width, height = _PLOT
    box = f'viewBox="0 0 {width} {height}" role="img" aria-label="speed and error"'
    parts = [f'<svg class="scatter" {box}>']
    parts += axes.grid()
    limit = axes.x(outcome.min_speedup)
    parts.append(f'<path class="limit" d="M{limit:.1f} {_MARGINS[2]}V{height - _MARGINS[3]}"/>')
    parts.append(
        f'<text x="{limit - 6:.1f}" y="{_MARGINS[2] + 10}" text-anchor="end">too slow</text>'
    )
    for trial in sorted(points, key=_is_chosen):
        kind, size = ("after", 7) if _is_chosen(trial) else ("before", 4)
        title = f"{trial.what}: {trial.error:.3%}, {trial.speedup:.2f}x"
        x, y = axes.x(trial.speedup or 0.0), axes.y(trial.error or 0.0)
        parts.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size}">'
            f"<title>{_text(title)}</title></circle>"
        )
    label = "times as fast as the original; upwards: relative error of the outputs"
    parts.append(f'<text x="{_MARGINS[0]}" y="{height - 8}">{label}</text></svg>')
    return "".join(parts)


def _is_chosen(trial: Trial) -> bool:
    return trial.verdict.startswith("chosen")


class _Axes:
    """The mapping from speeds, linear, and errors, logarithmic, to points of the plot."""

    def __init__(self, least: float, trials: Sequence[Trial]) -> None:
        self._most = 1.1 * max(least, *(t.speedup or 0.0 for t in trials))
        logs = [_log(t.error or 0.0) for t in trials]
        self._low = math.floor(min(logs))
        self._high = max(math.ceil(max(logs)), self._low + 1)

    def x(self, speedup: float) -> float:
        left, right = _MARGINS[:2]
        return left + (_PLOT[0] - left - right) * speedup / self._most

    def y(self, error: float) -> float:
        top, bottom = _MARGINS[2:]
        share = (self._high - _log(error)) / (self._high - self._low)
        return top + (_PLOT[1] - top - bottom) * share

    def grid(self) -> list[str]:
        """Return lines at powers of ten, and the labels of both axes."""
        left, right, _, bottom = _MARGINS
        lines = []
        for power in range(self._low, self._high + 1):
            y = self.y(10.0**power)
            at = f'x="{left - 6}" y="{y + 4:.1f}" text-anchor="end"'
            path = f'<path class="grid" d="M{left} {y:.1f}H{_PLOT[0] - right}"/>'
            lines.append(f"{path}<text {at}>{100 * 10.0**power:g}%</text>")
        y = _PLOT[1] - bottom + 16
        step = 1.0 if self._most >= _WHOLE_TICKS else 0.5
        ticks = (i * step for i in range(math.floor(self._most / step) + 1))
        return lines + [
            f'<text x="{self.x(tick):.1f}" y="{y}" text-anchor="middle">{tick:g}x</text>'
            for tick in ticks
        ]


def _log(error: float) -> float:
    return math.log10(max(error, _MIN_ERROR))


def _trials(trials: Sequence[Trial]) -> str:
    rows = [
        [
            trial.what,
            str(trial.n_float or ""),
            *map(percent, (trial.error, trial.loss)),
            "" if trial.speedup is None else f"{trial.speedup:.2f}x",
            format_bytes(trial.n_bytes) if trial.n_bytes else "",
            trial.verdict,
        ]
        for trial in trials
    ]
    titles = ("how", "layers in floats", "error", "loss", "speed", "size", "")
    chosen = [i for i, trial in enumerate(trials) if _is_chosen(trial)]
    return _table(titles, rows, numbers=range(1, 6), long=(0, 6), chosen=chosen)


def _layers(layers: Sequence[LayerResult]) -> str:
    rows = [
        [
            layer.name,
            layer.op,
            percent(layer.error),
            *(format_bytes(n) if n else "" for n in (layer.bytes_before, layer.bytes_after)),
            *(format_seconds(s) if s else "" for s in (layer.seconds_before, layer.seconds_after)),
            layer.choice,
            layer.why,
        ]
        for layer in layers
    ]
    titles = ("layer", "op", "error", "bytes", "after", "time", "after", "choice", "why")
    return _table(titles, rows, numbers=range(2, 7), long=(8,))


def _table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[int],
    long: Sequence[int],
    chosen: Sequence[int] = (),
) -> str:
    def cell(tag: str, i: int, text: str) -> str:
        kind = "number" if i in numbers else "long" if i in long else ""
        return f'<{tag} class="{kind}">{_text(text)}</{tag}>'

    head = "".join(cell("th", i, title) for i, title in enumerate(titles))
    body = []
    for number, row in enumerate(rows):
        cells = "".join(cell("td", i, text) for i, text in enumerate(row))
        kind = "chosen" if number in chosen else ""
        body.append(f'<tr class="{kind}">{cells}</tr>')
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[:20]}..{name[22 - _LONGEST :]}"


def _text(text: str) -> str:
    return html.escape(printable(text))

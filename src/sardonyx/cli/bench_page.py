"""The page of `sardonyx bench --html`: bars of latency, start and memory, and each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sardonyx._native as native
from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.reports import charts
from sardonyx.reports.html_page import document, paragraph, section, table

OURS: Final = "sardonyx"

Results = Mapping[str, Mapping[str, Any]]  # figures of a model, by runtime


def page(title: str, models: Sequence[tuple[str, Results]]) -> str:
    """Return the whole page."""
    note = "A bar is the median; dots are the best runs of single rounds, the line spans them."
    body = [paragraph(note)]
    if len(models) > 1:
        body.append(section("Latency relative to sardonyx", _ratios(models)))
    body += [section(name, *_model(results)) for name, results in models]
    return document("Benchmark", f"{title}; {native.isa}", body)


def _ratios(models: Sequence[tuple[str, Results]]) -> str:
    """Return a bar for each model and rival: its latency divided by ours."""
    rows = []
    for name, results in models:
        ours = results[OURS].get("latency_s")
        for rival, result in results.items():
            if ours and rival != OURS and "latency_s" in result:
                ratio = result["latency_s"] / ours
                title = f"{name}: {rival} takes {ratio:.2f} times as long"
                rows.append(charts.Bar(name, ratio, f"{ratio:.2f}x  {rival}", "ours", title=title))
    return charts.bars(sorted(rows, key=lambda row: -row.length))


def _model(results: Results) -> list[str]:
    ran = {runtime: r for runtime, r in results.items() if "error" not in r}
    parts = [
        _chart("latency", ran, "latency_s", "rounds_s", format_seconds),
        _chart("start", ran, "start_s", "starts_s", format_seconds),
        _chart("memory with a run", ran, "run_bytes", "", format_bytes),
    ]
    errors = [[runtime, r["error"]] for runtime, r in results.items() if "error" in r]
    return [*parts, table(("runtime", "failed with"), errors) if errors else ""]


def _chart(title: str, ran: Results, key: str, spread: str, form: Callable[[Any], str]) -> str:
    """Return a bar for each runtime that has this figure."""
    rows = []
    for runtime, result in ran.items():
        if result.get(key) is not None:
            values = result.get(spread, ())
            limits = f"  ({form(min(values))} to {form(max(values))})" if len(values) > 1 else ""
            kind = "ours" if runtime == OURS else "theirs"
            label = f"{form(result[key])}{limits}"
            rows.append(charts.Bar(runtime, result[key], label, kind, spread=values))
    return paragraph(title) + charts.bars(rows) if rows else ""

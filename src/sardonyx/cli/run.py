"""`sardonyx run`: runs a model once for its outputs, then repeatedly for its latency."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import frozen
from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.cli import inputs as feeds
from sardonyx.cli.arguments import UsageError, entries_of
from sardonyx.cli.bench_worker import anonymous_bytes, flat, write_arrays
from sardonyx.cli.console import activity, count, format_shape, heading, printable, say, table
from sardonyx.cli.folding import folded
from sardonyx.cli.measure import Latency, Start, growth, latency, start

SHOWN: Final = 5  # values of an output
PROFILED: Final = 3  # runs in a profile: the first, which touches the weights, and two later ones


@frozen
class Measured:
    """The outputs and figures of a model that was run and timed."""

    start: Start
    outputs: list[Any]
    memory: int | None  # bytes that the first run added
    latency: Latency

    @property
    def named(self) -> list[tuple[str, Any]]:
        """Return the outputs with their names."""
        names = [o.name for o in self.start.session.get_outputs()]
        return list(zip(names, self.outputs, strict=True))

    def facts(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "python_steps": self.start.session._compiled.program.python_steps,
            "latency": {
                "median_s": self.latency.median,
                "best_s": self.latency.best,
                "runs": self.latency.runs,
            },
            "start": {"seconds": self.start.seconds, "stages": self.start.stages},
            "memory": {"start_bytes": self.start.memory, "run_bytes": self.memory},
        }


def command(arguments: argparse.Namespace) -> int:
    """Run MODEL, or the built-in one."""
    files = (arguments.outputs, arguments.profile)
    feeds.check_outputs(files)
    if arguments.model is None:
        from sardonyx.cli.digits import run_digits

        for option in ("inputs", "dims", "shapes"):
            if getattr(arguments, option):
                raise UsageError(f"--{option} needs a MODEL")
        return run_digits(arguments)
    path = pathlib.Path(arguments.model)
    name = printable(path.name)
    feeds.check_outputs(files, feeds.input_files(arguments))  # before the profile is begun
    with activity(f"loading {name}"):
        started = start_session(arguments, path)
    feeds.check_outputs(files, started.session._source.files.states())
    feed, source = feeds.chosen(arguments, path, started.session._compiled.model.inputs)
    with activity(f"running {name}"):
        measured = measure(arguments, started, feed, feed)
    if arguments.json:
        _print_json(arguments, measured, feed, source)
    else:
        _print(arguments, measured, feed, source)
    return 0


def start_session(arguments: argparse.Namespace, model: pathlib.Path) -> Start:
    """Create a session with the options of the arguments, profiled with --profile."""
    profile = None if arguments.profile is None else os.fspath(arguments.profile)
    entries = entries_of(arguments)
    return start(model, arguments.threads, profile, entries=entries, providers=arguments.provider)


def measure(
    arguments: argparse.Namespace, started: Start, feed: Mapping[str, Any], timed: Mapping[str, Any]
) -> Measured:
    """Run `feed` for its outputs and `timed` for its latency; write --outputs and --profile."""
    session = started.session
    before = anonymous_bytes()
    outputs = session.run(None, feed)
    memory = growth(before)
    if arguments.profile is not None:
        for _ in range(PROFILED - 1):
            session.run(None, feed)
        os.replace(session.end_profiling(), arguments.profile)
    took = latency(lambda: session.run(None, timed), arguments.seconds)
    measured = Measured(started, outputs, memory, took)
    if arguments.outputs is not None:
        arrays = dict(pair for name, value in measured.named for pair in flat(name, value))
        with writing(os.fspath(arguments.outputs)) as file:
            write_arrays(file, arrays)
    return measured


def describe(name: str, value: Any) -> dict[str, Any]:
    """Return the facts about an input or output for JSON; statistics are of finite values."""
    if not isinstance(value, np.ndarray):
        kind = {list: "list", dict: "map", type(None): "absent"}.get(type(value), "scalar")
        n = len(value) if isinstance(value, (list, dict)) else None
        return {"name": name, "type": kind, "length": n, "first": _brief(value)}
    facts: dict[str, Any] = {
        "name": name,
        "type": "string" if value.dtype == object else value.dtype.name,
        "shape": list(value.shape),
        "first": [_plain(v) for v in value.reshape(-1)[:SHOWN]],
    }
    if value.dtype.kind in "cO" or not value.size:
        return facts
    numbers = value.astype(np.float64) if value.dtype != np.float64 else value
    finite = np.isfinite(numbers)
    if not finite.all():
        facts["nonfinite"] = int(value.size - finite.sum())
        numbers = numbers[finite]
    if numbers.size:
        figures = (numbers.min(), numbers.max(), numbers.mean())
        facts.update(zip(("min", "max", "mean"), map(float, figures), strict=True))
    return facts


def _brief(value: Any) -> str:
    text = repr(value[:SHOWN] if isinstance(value, list) else value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _plain(value: Any) -> Any:
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, (str, bool, int)):
        return item
    if isinstance(item, complex):
        return str(item)
    number = float(item)
    return number if np.isfinite(number) else str(number)


def _print_json(
    arguments: argparse.Namespace, measured: Measured, feed: Mapping[str, Any], source: str
) -> None:
    facts = {
        "model": arguments.model,
        "precision": arguments.precision,
        "inputs": [describe(n, v) for n, v in feed.items()],
        "inputs_from": source,
        "outputs": [describe(n, v) for n, v in measured.named],
        **measured.facts(),
    }
    print(json.dumps(facts, indent=2))


def _print(
    arguments: argparse.Namespace, measured: Measured, feed: Mapping[str, Any], source: str
) -> None:
    precision = "" if arguments.precision == "exact" else f", run in {arguments.precision}"
    heading("inputs", printable(source) + precision)
    table(_rows([describe(n, v) for n, v in feed.items()], _type_row), styles={0: "cyan", 3: "dim"})
    say()
    heading("outputs")
    rows = _rows([describe(n, v) for n, v in measured.named], _value_row)
    table(rows, styles={0: "cyan", 3: "dim"})
    say()
    print_figures(measured)
    print_files(arguments)


def print_figures(measured: Measured, what: str = "") -> None:
    """Print latency, start-up time and memory."""
    took, started = measured.latency, measured.start
    long = {k: v for k, v in started.stages.items() if v >= 0.05 * started.seconds}
    stages = ", ".join(f"{k} {format_seconds(v)}" for k, v in long.items())
    best = f"median of {count(took.runs, 'run')}{what}, best {format_seconds(took.best)}"
    rows = [
        ("latency", format_seconds(took.median), best),
        ("start", format_seconds(started.seconds), stages),
    ]
    if started.memory is not None and measured.memory is not None:
        more = f"at start, {format_bytes(measured.memory)} more at the first run"
        rows.append(("memory", format_bytes(started.memory), more))
    table(rows, right=(1,), styles={0: "bold", 2: "dim"}, indent=0)


def print_files(arguments: argparse.Namespace) -> None:
    """Print which files were written."""
    paths = {name: getattr(arguments, name) for name in ("outputs", "profile")}
    rows = [[n, f"written to {printable(str(p))}"] for n, p in paths.items() if p is not None]
    table(rows, styles={0: "bold"}, indent=0)


def _rows(
    facts: Sequence[Mapping[str, Any]], row: Callable[[Mapping[str, Any]], list[str]]
) -> list[list[str]]:
    """Return a row for each value; caches of all layers share one, without their elements."""
    return [
        row(group[0])
        if len(group) == 1
        else [title, *_type_row(group[0])[1:], f"{len(group)} of them"]
        for title, group in folded(facts)
    ]


def _type_row(facts: Mapping[str, Any]) -> list[str]:
    last = format_shape(facts["shape"]) if "shape" in facts else printable(str(facts["first"]))
    return [printable(facts["name"]), facts["type"], last]


def _value_row(facts: Mapping[str, Any]) -> list[str]:
    row = _type_row(facts)
    if "shape" not in facts:
        return row
    figures = [f"{k} {facts[k]:.4g}" for k in ("min", "max", "mean") if k in facts]
    if "nonfinite" in facts:
        figures.append(f"{facts['nonfinite']} not finite")
    return [*row, ", ".join(figures), _values(facts["first"], np.prod(facts["shape"]))]


def _values(first: Sequence[Any], count: Any) -> str:
    texts = [f"{v:.4g}" if isinstance(v, float) else printable(str(v))[:20] for v in first]
    return ", ".join(texts) + (", ..." if count > len(first) else "")

"""`sardonyx run`: runs a model once to look at its outputs, then often to time it."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import frozen
from sardonyx.cli import inputs as feeds
from sardonyx.cli import targets
from sardonyx.cli.arguments import UsageError, entries_of
from sardonyx.cli.measure import Latency, Start, first_run, latency, start
from sardonyx.cli.term import (
    Progress,
    after,
    clean,
    duration,
    heading,
    paint,
    say,
    shape,
    size,
    table,
)
from sardonyx.cli.worker import flat, write_arrays

SHOWN: Final = 5  # values of an output
PROFILED: Final = 3  # runs in a profile: one that reads the weights, and two as they go on


@frozen
class Measured:
    """A model that was run and timed."""

    start: Start
    outputs: list[Any]
    memory: int | None  # bytes that the first run added
    latency: Latency

    @property
    def named(self) -> list[tuple[str, Any]]:
        """The outputs with their names."""
        names = [o.name for o in self.start.session.get_outputs()]
        return list(zip(names, self.outputs, strict=True))

    def facts(self) -> dict[str, Any]:
        """The figures for machines."""
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
    """Runs MODEL, or the built-in one."""
    files = (arguments.outputs, arguments.profile)
    targets.check(files)
    if arguments.model is None:
        from sardonyx.cli.digits import show

        for option in ("inputs", "dims", "shapes"):
            if getattr(arguments, option):
                raise UsageError(f"--{option} is for a MODEL, and none is given")
        return show(arguments)
    path = pathlib.Path(arguments.model)
    name = clean(path.name)
    targets.check(files, targets.read_by(arguments))  # a profile is begun with the load
    with Progress(f"loading {name}"):
        started = begin(arguments, path)
    targets.check(files, started.session._source.files.states())
    feed, source = feeds.chosen(arguments, path, started.session._compiled.model.inputs)
    with Progress(f"running {name}"):
        measured = measure(arguments, started, feed, feed)
    if arguments.json:
        _print_json(arguments, measured, feed, source)
    else:
        _print(arguments, measured, feed, source)
    return 0


def begin(arguments: argparse.Namespace, model: pathlib.Path) -> Start:
    """A session for the model, profiled if that is asked for."""
    profile = None if arguments.profile is None else os.fspath(arguments.profile)
    entries = entries_of(arguments)
    return start(model, arguments.threads, profile, entries=entries, providers=arguments.provider)


def measure(
    arguments: argparse.Namespace, started: Start, feed: Mapping[str, Any], timed: Mapping[str, Any]
) -> Measured:
    """Runs `feed` for its outputs and `timed` for its latency; writes what files are asked for."""
    session = started.session
    outputs, memory = first_run(session, feed)
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
    """What an input or output is and holds, for machines; figures are those of finite values."""
    if not isinstance(value, np.ndarray):
        kind = {list: "list", dict: "map", type(None): "absent"}.get(type(value), "scalar")
        n = len(value) if isinstance(value, (list, dict)) else None
        return {"name": name, "type": kind, "length": n, "first": _brief(value)}
    said: dict[str, Any] = {
        "name": name,
        "type": "string" if value.dtype == object else value.dtype.name,
        "shape": list(value.shape),
        "first": [_plain(v) for v in value.reshape(-1)[:SHOWN]],
    }
    if value.dtype.kind in "cO" or not value.size:
        return said
    numbers = value.astype(np.float64) if value.dtype != np.float64 else value
    finite = np.isfinite(numbers)
    if not finite.all():
        said["nonfinite"] = int(value.size - finite.sum())
        numbers = numbers[finite]
    if numbers.size:
        figures = (numbers.min(), numbers.max(), numbers.mean())
        said.update(zip(("min", "max", "mean"), map(float, figures), strict=True))
    return said


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
    say(
        json.dumps(
            {
                "model": arguments.model,
                "precision": arguments.precision,
                "inputs": [describe(n, v) for n, v in feed.items()],
                "inputs_from": source,
                "outputs": [describe(n, v) for n, v in measured.named],
                **measured.facts(),
            },
            indent=2,
        )
    )


def _print(
    arguments: argparse.Namespace, measured: Measured, feed: Mapping[str, Any], source: str
) -> None:
    rounded = "" if arguments.precision == "exact" else f", run in {arguments.precision}"
    heading("inputs", clean(source) + rounded)
    table([_type_row(describe(n, v)) for n, v in feed.items()], styles={0: "cyan"})
    say()
    heading("outputs")
    table([_value_row(describe(n, v)) for n, v in measured.named], styles={0: "cyan", 3: "dim"})
    say()
    print_figures(measured)
    print_files(arguments)


def print_figures(measured: Measured, what: str = "") -> None:
    """Latency, start and memory."""
    took, begun = measured.latency, measured.start
    long = {k: v for k, v in begun.stages.items() if v >= 0.05 * begun.seconds}
    stages = ", ".join(f"{k} {duration(v)}" for k, v in long.items())
    runs = f"{took.runs} run{'' if took.runs == 1 else 's'}{what}"
    rows = [
        ("latency", duration(took.median), f"median of {runs}, best {duration(took.best)}"),
        ("start", duration(begun.seconds), stages),
    ]
    if begun.memory is not None and measured.memory is not None:
        more = f"at start, {size(measured.memory)} more at the first run"
        rows.append(("memory", size(begun.memory), more))
    for name, figure, note in rows:
        after(f"{paint(f'{name:<8}', 'bold')} {figure:>9}", 18, note, "dim")


def print_files(arguments: argparse.Namespace) -> None:
    """Which files were written."""
    for name in ("outputs", "profile"):
        if getattr(arguments, name) is not None:
            say(f"{paint(f'{name:<8}', 'bold')} written to {clean(str(getattr(arguments, name)))}")


def _type_row(said: Mapping[str, Any]) -> list[str]:
    if "shape" not in said:
        return [clean(said["name"]), said["type"], str(said["first"])]
    return [clean(said["name"]), said["type"], shape(said["shape"])]


def _value_row(said: Mapping[str, Any]) -> list[str]:
    row = _type_row(said)
    if "shape" not in said:
        return row
    figures = [f"{k} {said[k]:.4g}" for k in ("min", "max", "mean") if k in said]
    if "nonfinite" in said:
        figures.append(f"{said['nonfinite']} not finite")
    return [*row, ", ".join(figures), _values(said["first"], np.prod(said["shape"]))]


def _values(first: Sequence[Any], count: Any) -> str:
    texts = [f"{v:.4g}" if isinstance(v, float) else clean(str(v))[:20] for v in first]
    return ", ".join(texts) + (", ..." if count > len(first) else "")

"""`sardonyx profile --start`: the stages of start-up, measured in fresh processes."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, Final

from sardonyx.base.units import format_seconds
from sardonyx.cli import start_worker
from sardonyx.cli.arguments import precision_entry
from sardonyx.cli.console import activity, count, heading, printable, say, table
from sardonyx.cli.inputs import chosen, store
from sardonyx.cli.measure import start
from sardonyx.errors import Fail

# What each stage does, in execution order.
STAGES: Final[Mapping[str, str]] = {
    "load": "decode the model's graph; weights stay in their file",
    "infer": "infer types and shapes of all values",
    "optimize": "rewrite the graph with ONNX ops",
    "save": "write the optimized model",
    "lower": "lower the graph to the ops of the kernels",
    "write_pack": "write a pack for later start-ups",
    "pack": "find a pack and read the graph from it, instead of load to lower",
    "place": "assign nodes to providers",
    "schedule": "choose the execution order",
    "memory": "compute lifetimes of values",
    "program": "build the native program",
    "weights": "read weights and prepack them for kernels",
}
_STARTS: Final = 5


def show_start(arguments: argparse.Namespace, path: pathlib.Path) -> int:
    """Measure start-ups and print a table."""
    with activity(f"starting {printable(path.name)}"), tempfile.TemporaryDirectory() as folder:
        entries, providers = precision_entry(arguments), arguments.provider
        started = start(path, arguments.threads, entries=entries, providers=providers)
        feed, _ = chosen(arguments, path, started.session._compiled.model.inputs)
        request = {
            "model": os.path.abspath(path),
            "threads": arguments.threads,
            "providers": providers,
            "entries": entries,
            **store(feed, str(path), pathlib.Path(folder)),
        }
        n_starts = arguments.starts or _STARTS
        figures = median([_start(request) for _ in range(n_starts)])
    if arguments.json:
        print(json.dumps({"model": str(path), "starts": n_starts, **figures}, indent=2))
    else:
        _print(printable(path.name), n_starts, figures)
    return 0


def _start(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure one start-up in a fresh process."""
    done = subprocess.run(
        # -P keeps the script's folder off sys.path: its modules would hide others.
        [sys.executable, "-P", start_worker.__file__, json.dumps(request)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Fail(f"a fresh process could not start the model: {last}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def median(starts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure."""
    medians: dict[str, Any] = {
        key: statistics.median(s[key] for s in starts) for key in starts[0] if key != "stages"
    }
    names = dict.fromkeys(name for s in starts for name in s["stages"])
    medians["stages"] = {
        name: statistics.median(s["stages"].get(name, 0.0) for s in starts) for name in names
    }
    medians["other"] = statistics.median(
        s["session"] - s["import_later"] - sum(s["stages"].values()) for s in starts
    )
    return medians


def _print(name: str, n_starts: int, figures: Mapping[str, Any]) -> None:
    heading(f"start of {name}", f"median of {count(n_starts, 'fresh process', 'fresh processes')}")
    rows = [
        ("import", figures["import"], "modules before the session, without numpy"),
        ("import later", figures["import_later"], "modules that the stages import"),
        *((stage, took, STAGES.get(stage, "")) for stage, took in figures["stages"].items()),
        ("other", figures["other"], "options, opening files, and between stages"),
    ]
    total = figures["import"] + figures["session"]
    shown = [[n, format_seconds(t), f"{100 * t / total:.1f} %", what] for n, t, what in rows]
    table(shown, ("", "time", "share", ""), right=(1, 2), styles={0: "cyan", 3: "dim"})
    keys = ("session", "numpy", "first_run", "later_run")
    session, numpy, first, later = (format_seconds(figures[key]) for key in keys)
    imports = format_seconds(total)
    say(f"\nthe session takes {session}, {imports} with imports; numpy before it {numpy}")
    say(f"the first run takes {first}, later ones {later}")

"""`sardonyx profile --start`: where the milliseconds of a start go, in fresh processes."""

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

from sardonyx.cli import starting
from sardonyx.cli.arguments import precision_entry
from sardonyx.cli.inputs import chosen, store
from sardonyx.cli.measure import start
from sardonyx.cli.term import Progress, clean, duration, heading, say, table
from sardonyx.errors import Fail

# What each stage does, in the order of a start.
STAGES: Final[Mapping[str, str]] = {
    "load": "decodes the model's graph; weights stay in their file",
    "infer": "types and shapes of all values",
    "optimize": "rewrites of the graph that keep to ONNX's ops",
    "save": "writes the optimized model",
    "lower": "rewrites to the ops that kernels are made for",
    "write_pack": "writes a pack for later starts",
    "pack": "looks for a pack, and reads the graph from it in place of load to lower",
    "place": "asks providers who runs which node",
    "schedule": "an order of steps",
    "memory": "when memory of values is free again",
    "program": "steps and sizes as native code takes them",
    "weights": "reads weights and packs them for kernels",
}
_STARTS: Final = 5


def show_start(arguments: argparse.Namespace, path: pathlib.Path) -> int:
    """Measures some starts and prints a table."""
    with Progress(f"starting {clean(path.name)}"), tempfile.TemporaryDirectory() as folder:
        entries, providers = precision_entry(arguments), arguments.provider
        begun = start(path, arguments.threads, entries=entries, providers=providers)
        feed, _ = chosen(arguments, path, begun.session._compiled.model.inputs)
        request = {
            "model": os.path.abspath(path),
            "threads": arguments.threads,
            "providers": providers,
            "entries": entries,
            **store(feed, str(path), pathlib.Path(folder)),
        }
        n_starts = arguments.starts or _STARTS
        found = median([_started(request) for _ in range(n_starts)])
    if arguments.json:
        say(json.dumps({"model": str(path), "starts": n_starts, **found}, indent=2))
    else:
        _print(clean(path.name), n_starts, found)
    return 0


def _started(request: Mapping[str, Any]) -> dict[str, Any]:
    """One start, in a process of its own."""
    done = subprocess.run(
        # -P: the script's own folder must not stand before other modules.
        [sys.executable, "-P", starting.__file__, json.dumps(request)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Fail(f"a fresh process could not start the model: {last}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def median(starts: list[dict[str, Any]]) -> dict[str, Any]:
    """The middle of each figure."""
    made: dict[str, Any] = {
        key: statistics.median(s[key] for s in starts) for key in starts[0] if key != "stages"
    }
    names = dict.fromkeys(name for s in starts for name in s["stages"])
    made["stages"] = {
        name: statistics.median(s["stages"].get(name, 0.0) for s in starts) for name in names
    }
    made["other"] = statistics.median(
        s["session"] - s["import_later"] - sum(s["stages"].values()) for s in starts
    )
    return made


def _print(name: str, n_starts: int, found: Mapping[str, Any]) -> None:
    many = f"median of {n_starts} fresh process{'es' * (n_starts > 1)}"
    heading(f"start of {name}", many)
    rows = [("import", found["import"], "modules before the session, without numpy's")]
    rows.append(("import later", found["import_later"], "modules that stages of this model need"))
    rows += [(stage, took, STAGES.get(stage, "")) for stage, took in found["stages"].items()]
    rows.append(("other", found["other"], "options, opening files, and what is between stages"))
    total = found["import"] + found["session"]
    shown = [["", "time", "share", ""]]
    shown += [[n, duration(t), f"{100 * t / total:.1f} %", what] for n, t, what in rows]
    table(shown, right=(1, 2), styles={0: "cyan", 3: "dim"})
    say()
    say(
        f"the session takes {duration(found['session'])}, with imports {duration(total)}; "
        f"numpy before it {duration(found['numpy'])}"
    )
    say(
        f"the first run takes {duration(found['first_run'])}, later ones "
        f"{duration(found['later_run'])}"
    )

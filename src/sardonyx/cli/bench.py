"""`sardonyx bench`: latency, start and memory of models, here and in rivals, taking turns."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

import numpy as np

from sardonyx.cli import inputs as feeds
from sardonyx.cli import worker as worker_script
from sardonyx.cli.arguments import UsageError
from sardonyx.cli.term import Progress, clean, duration, heading, paint, say, size, table
from sardonyx.errors import SardonyxError
from sardonyx.load import load

OURS: Final = "sardonyx"
KNOWN: Final = ("onnxruntime", "openvino")  # rivals by default, as far as they are installed
_NO_FILES: Final = ("torch", "tensorflow", "jax")  # run no ONNX file by themselves

Row = dict[str, Any]


class Failed(Exception):
    """A runtime could not do what it was asked."""


class Runtime:
    """A runtime in a process of its own, which works only while it is asked to."""

    def __init__(self, module: str, threads: int) -> None:
        self.module = module
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        # -P: the script's own folder must not stand before the runtime's modules.
        command = [sys.executable, "-P", worker_script.__file__, module, str(threads)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def ask(self, do: str, **request: Any) -> Row:
        """Sends a request and waits for its answer."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise Failed(f"its process ended with status {process.wait()}{self._last_words()}")
        answer: Row = json.loads(line)
        if "error" in answer:
            raise Failed(_first_line(answer["error"]))
        return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read()[-2000:].decode(errors="replace").strip()
        return f": {said.splitlines()[-1]}" if said else ""

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def command(arguments: argparse.Namespace) -> int:
    """Measures each model and prints a table for each."""
    modules = [OURS, *_rivals(arguments)]
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = arguments.threads or n_cores or 1
    results = []
    versus = f"against {', '.join(modules[1:])}" if modules[1:] else "alone"
    title = f"sardonyx {versus}; {threads} thread{'s' * (threads > 1)}"
    title += "; above 1x sardonyx is faster" if modules[1:] else ""
    if arguments.rivals is None:
        title += "".join(f"; {n} is not installed" for n in KNOWN if not _is_installed(n))
    names = titles(arguments.models)
    for path in arguments.models:
        progress = Progress(clean(names[path]))
        try:
            with progress, tempfile.TemporaryDirectory() as folder:
                rows = _measure(arguments, path, modules, (threads, pathlib.Path(folder), progress))
        except SardonyxError as error:
            if len(arguments.models) == 1:
                raise
            rows = {OURS: {"error": error.what}}  # the other models go on
        results.append({"model": path, "runtimes": rows})
        if not arguments.json:
            if len(results) == 1:
                say(paint(f"{title}\n", "dim"))
            _print(names[path], rows)
    if arguments.json:
        say(json.dumps({"threads": threads, "models": results}, indent=2))
    elif len(results) > 1:
        _print_means(results, modules[1:])
    return 1 if any("error" in r["runtimes"][OURS] for r in results) else 0


def _rivals(arguments: argparse.Namespace) -> list[str]:
    given: list[str] | None = arguments.rivals
    if given is None:
        known = KNOWN[:1] if arguments.provider else KNOWN  # others take no providers
        return [name for name in known if _is_installed(name)]
    for name in given:
        if name in _NO_FILES:
            raise UsageError(
                f"{name} runs no ONNX files, so it is no rival; known are {', '.join(KNOWN)}, and "
                "any module with onnxruntime's interface"
            )
        if not _is_installed(name):
            raise UsageError(
                f"the rival {name} is not installed; pip install {name} (known are "
                f"{', '.join(KNOWN)}, and any module with onnxruntime's interface)"
            )
    return [name for name in given if name != OURS]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _measure(
    arguments: argparse.Namespace,
    path: str,
    modules: Sequence[str],
    where: tuple[int, pathlib.Path, Progress],
) -> dict[str, Row]:
    """A row for each runtime: starts in fresh processes, then rounds in which all take turns."""
    threads, folder, progress = where
    name = progress.what
    feed, _ = feeds.chosen(arguments, pathlib.Path(path), load(path).inputs)
    request = {
        "model": os.path.abspath(path),
        "providers": arguments.provider,
        **feeds.store(feed, path, folder),
    }
    rows: dict[str, Row] = {m: {} for m in modules}
    with contextlib.ExitStack() as stack:
        live: dict[str, Runtime] = {}
        for module, row in rows.items():
            progress.what = f"{name}: starting {module}"
            with _recording(row):
                live[module] = _start(stack, module, threads, (arguments.starts, request, row))
        for module in live:
            with _recording(rows[module]):
                live[module].ask("outputs", file=str(folder / f"{module}.npz"))
        _compare(rows, folder)
        bests: dict[str, list[float]] = {m: [] for m in live}
        for turn in range(arguments.rounds):
            for module, runtime in live.items():
                progress.what = f"{name}: {module}, round {turn + 1} of {arguments.rounds}"
                if "error" not in rows[module]:
                    with _recording(rows[module]):
                        bests[module].append(runtime.ask("time", seconds=arguments.seconds)["best"])
    for module, times in bests.items():
        if "error" not in rows[module]:
            rows[module]["latency_s"] = statistics.median(times)
    return rows


@contextlib.contextmanager
def _recording(row: Row) -> Iterator[None]:
    """What goes wrong in a runtime stands in its row, and the others go on."""
    try:
        yield
    except Failed as error:
        row.clear()
        row["error"] = str(error)


def _start(
    stack: contextlib.ExitStack, module: str, threads: int, what: tuple[int, Row, Row]
) -> Runtime:
    """Starts a session in several fresh processes; the last of them lives on."""
    n_starts, request, row = what
    answers = []
    for i in range(n_starts):
        runtime = Runtime(module, threads)
        if i == n_starts - 1:
            stack.callback(runtime.close)
            answers.append(runtime.ask("start", **request))
        else:
            with contextlib.closing(runtime):
                answers.append(runtime.ask("start", **request))
    row["start_s"] = statistics.median(a["seconds"] for a in answers)
    for key in ("start_bytes", "run_bytes"):
        figures = [a[key] for a in answers if a[key] is not None]
        row[key] = statistics.median(figures) if figures else None
    return runtime


def _compare(rows: Mapping[str, Row], folder: pathlib.Path) -> None:
    """How far each rival's outputs are from ours, relative to the largest value."""
    ours = None if "error" in rows[OURS] else feeds.arrays_of(folder / f"{OURS}.npz")
    for module, row in rows.items():
        if ours is not None and module != OURS and "error" not in row:
            theirs = feeds.arrays_of(folder / f"{module}.npz")
            has_same = ours.keys() == theirs.keys()
            gaps = [_gap(ours[k], theirs[k]) for k in ours] if has_same else [None]
            known = [g for g in gaps if g is not None]
            row["differs"] = max(known, default=0.0) if len(known) == len(gaps) else None


def _gap(a: Any, b: Any) -> float | None:
    """The largest difference; None where two arrays are not the same kind of thing."""
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return None
    if a.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(a, b) else None
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return None
    if not finite.any():
        return 0.0
    if not np.isfinite(b[finite]).all():
        return None
    return float(np.abs(a[finite] - b[finite]).max() / max(np.abs(a[finite]).max(), 1e-30))


def titles(paths: Sequence[str]) -> dict[str, str]:
    """The name of each file, with as many folders before it as tell it from the others."""
    parts = {path: pathlib.Path(os.path.abspath(path)).parts for path in paths}
    found = {}
    for path, own in parts.items():
        others = [p for p in parts.values() if p != own]
        n = next((n for n in range(1, len(own)) if all(own[-n:] != p[-n:] for p in others)), None)
        found[path] = path if n is None else os.path.join(*own[-n:])
    return found


def _print(title: str, rows: Mapping[str, Row]) -> None:
    heading(clean(title))
    ours = rows[OURS].get("latency_s")
    shown = [["", "latency", "vs sardonyx", "start", "memory", "with a run", "differs"]]
    for module, row in rows.items():
        if "error" in row:
            continue
        latency, start = row["latency_s"], row["start_s"]
        ratio = f"{latency / ours:.2f}x as long" if ours and module != OURS else ""
        memory = ["-" if row[k] is None else size(row[k]) for k in ("start_bytes", "run_bytes")]
        shown.append([module, duration(latency), ratio, duration(start), *memory, _differs(row)])
    if len(shown) > 1:
        table(shown, right=(1, 2, 3, 4, 5, 6), styles={0: "cyan"})
    for module, row in rows.items():
        if "error" in row:
            say(f"  {paint(module, 'cyan')}  {paint(clean(row['error']), 'red')}")
    say()


def _differs(row: Row) -> str:
    if "differs" not in row:
        return ""
    return "in kind" if row["differs"] is None else f"{row['differs']:.1e}"


def _print_means(results: Sequence[Row], rivals: Sequence[str]) -> None:
    for rival in rivals:
        pairs = [(r["runtimes"][OURS], r["runtimes"].get(rival, {})) for r in results]
        ran = [(a, b) for a, b in pairs if "latency_s" in a and "latency_s" in b]
        if len(ran) > 1:  # of one the table says it
            latency, start = (
                statistics.geometric_mean(b[key] / a[key] for a, b in ran)
                for key in ("latency_s", "start_s")
            )
            say(
                f"{rival} takes {latency:.2f}x the latency and {start:.2f}x the start of sardonyx "
                f"(geometric mean of {len(ran)} models)"
            )


def _first_line(text: str) -> str:
    line = text.splitlines()[0] if text else "no reason given"
    return line if len(line) <= 200 else f"{line[:200]}..."

"""`sardonyx bench`: latency, start-up time and memory of models, here and in other runtimes."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

from sardonyx.base.atomic_file import writing
from sardonyx.base.npz import read_npz
from sardonyx.base.records import frozen
from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.cli import bench_worker
from sardonyx.cli import inputs as feeds
from sardonyx.cli.arguments import UsageError
from sardonyx.cli.console import Activity, activity, count, heading, printable, say, table
from sardonyx.cli.measure import difference
from sardonyx.errors import SardonyxError
from sardonyx.load import load

OURS: Final = "sardonyx"
KNOWN: Final = ("onnxruntime", "openvino")  # the default rivals, if they are installed
_NO_ONNX: Final = ("torch", "tensorflow", "jax")  # cannot run an ONNX file by themselves

Result = dict[str, Any]  # figures of one runtime, or its error


class RuntimeFailed(Exception):
    """A runtime could not answer a request."""


class Runtime:
    """A runtime in its own process, which is idle between requests."""

    def __init__(self, module: str, threads: int) -> None:
        self.module = module
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        # -P keeps the script's folder off sys.path: its modules would hide the runtime's.
        command = [sys.executable, "-P", bench_worker.__file__, module, str(threads)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def ask(self, do: str, **request: Any) -> Result:
        """Send a request and return the answer."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeFailed(f"its process ended with status {process.wait()}{self._error()}")
        answer: Result = json.loads(line)
        if "error" in answer:
            raise RuntimeFailed(_first_line(answer["error"]))
        return answer

    def _error(self) -> str:
        """Return the last line of standard error."""
        self._errors.seek(0)
        text = self._errors.read()[-2000:].decode(errors="replace").strip()
        return f": {text.splitlines()[-1]}" if text else ""

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def command(arguments: argparse.Namespace) -> int:
    """Measure each model and print a table for each."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = arguments.threads or n_cores or 1
    feeds.check_outputs([arguments.html], arguments.models)
    comparison = BenchSetup(arguments, [OURS, *_rivals(arguments)], threads)
    names = short_paths(arguments.models)
    results = []
    for path in arguments.models:
        by_runtime = _results_or_error(comparison, path, printable(names[path]))
        results.append({"model": path, "runtimes": by_runtime})
        if not arguments.json:
            if len(results) == 1:
                say(f"{comparison.title()}\n", "dim")
            _print(printable(names[path]), by_runtime)
    if arguments.json:
        print(json.dumps({"threads": threads, "models": results}, indent=2))
    elif len(results) > 1:
        _print_means(results, comparison.modules[1:])
    if arguments.html is not None:
        from sardonyx.cli.bench_page import page

        models = [(printable(names[r["model"]]), r["runtimes"]) for r in results]
        with writing(os.fspath(arguments.html)) as file:
            file.write(page(comparison.title(), models).encode())
        if not arguments.json:
            say(f"\nthe page is in {printable(str(arguments.html))}: open it in a browser")
    return 1 if any("error" in r["runtimes"][OURS] for r in results) else 0


def _results_or_error(comparison: BenchSetup, path: str, name: str) -> dict[str, Result]:
    """Return the results of a model; one of several models that fails does not stop the others."""
    try:
        with activity(name) as line, tempfile.TemporaryDirectory() as folder:
            return comparison.measure(path, pathlib.Path(folder), line, name)
    except SardonyxError as error:
        if len(comparison.arguments.models) == 1:
            raise
        return {OURS: {"error": error.what}}


def _rivals(arguments: argparse.Namespace) -> list[str]:
    rivals: list[str] | None = arguments.rivals
    if rivals is None:
        known = KNOWN[:1] if arguments.provider else KNOWN  # openvino has no providers
        return [name for name in known if _is_installed(name)]
    known_text = f"known are {', '.join(KNOWN)}, and any module with onnxruntime's interface"
    for name in rivals:
        if name in _NO_ONNX:
            raise UsageError(f"{name} cannot run ONNX files; {known_text}")
        if not _is_installed(name):
            raise UsageError(
                f"the rival {name} is not installed; pip install {name} ({known_text})"
            )
    return [name for name in rivals if name != OURS]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


@frozen
class BenchSetup:
    """The runtimes that are compared, and how they are measured."""

    arguments: argparse.Namespace
    modules: list[str]  # ours first
    threads: int

    def title(self) -> str:
        """Return one line about the runtimes."""
        rivals = self.modules[1:]
        title = f"sardonyx against {', '.join(rivals)}" if rivals else "sardonyx alone"
        title += f"; {count(self.threads, 'thread')}"
        title += "; above 1x sardonyx is faster" if rivals else ""
        if self.arguments.rivals is None:
            title += "".join(f"; {n} is not installed" for n in KNOWN if not _is_installed(n))
        return title

    def measure(
        self, path: str, folder: pathlib.Path, line: Activity, name: str
    ) -> dict[str, Result]:
        """Return the results by runtime: start-ups in fresh processes, then alternating rounds."""
        arguments = self.arguments
        feed, _ = feeds.chosen(arguments, pathlib.Path(path), load(path).inputs)
        request = {
            "model": os.path.abspath(path),
            "providers": arguments.provider,
            **feeds.store(feed, path, folder),
        }
        results: dict[str, Result] = {m: {} for m in self.modules}
        with contextlib.ExitStack() as stack:
            runtimes: dict[str, Runtime] = {}
            for module, result in results.items():
                line.describe(f"{name}: starting {module}")
                with _recording(result):
                    runtimes[module] = self._start(stack, module, request, result)
            for module, runtime in runtimes.items():
                with _recording(results[module]):
                    runtime.ask("outputs", file=str(folder / f"{module}.npz"))
            _compare(results, folder)
            for i in range(arguments.rounds):
                line.describe(f"{name}: round {i + 1} of {arguments.rounds}")
                self._round(runtimes, results)
        for result in results.values():
            if "error" not in result:
                result["latency_s"] = statistics.median(result["rounds_s"])
        return results

    def _start(
        self, stack: contextlib.ExitStack, module: str, request: Result, result: Result
    ) -> Runtime:
        """Create a session in several fresh processes and return the last of them."""
        answers = []
        for i in range(self.arguments.starts):
            runtime = Runtime(module, self.threads)
            # The last process stays for the rounds; the others only measure the start.
            if i == self.arguments.starts - 1:
                stack.callback(runtime.close)
                answers.append(runtime.ask("start", **request))
            else:
                with contextlib.closing(runtime):
                    answers.append(runtime.ask("start", **request))
        result["starts_s"] = [a["seconds"] for a in answers]
        result["start_s"] = statistics.median(result["starts_s"])
        for key in ("start_bytes", "run_bytes"):
            figures = [a[key] for a in answers if a[key] is not None]
            result[key] = statistics.median(figures) if figures else None
        return runtime

    def _round(self, runtimes: Mapping[str, Runtime], results: Mapping[str, Result]) -> None:
        """Append the best latency of each runtime in one round."""
        for module, runtime in runtimes.items():
            result = results[module]
            if "error" not in result:
                with _recording(result):
                    best = runtime.ask("time", seconds=self.arguments.seconds)["best"]
                    result.setdefault("rounds_s", []).append(best)


@contextlib.contextmanager
def _recording(result: Result) -> Iterator[None]:
    """Replace a runtime's result by its error if it fails; the others go on."""
    try:
        yield
    except RuntimeFailed as error:
        result.clear()
        result["error"] = str(error)


def _compare(results: Mapping[str, Result], folder: pathlib.Path) -> None:
    """Add the largest difference of each rival's outputs, relative to Sardonyx's largest value."""
    ours = None if "error" in results[OURS] else read_npz(folder / f"{OURS}.npz")
    for module, result in results.items():
        if ours is not None and module != OURS and "error" not in result:
            theirs = read_npz(folder / f"{module}.npz")
            largest = max((difference(a, theirs.get(k)) for k, a in ours.items()), default=0.0)
            is_comparable = ours.keys() == theirs.keys() and math.isfinite(largest)
            result["differs"] = largest if is_comparable else None


def short_paths(paths: Sequence[str]) -> dict[str, str]:
    """Return the name of each file, with as many parent folders as make it unique."""
    parts = {path: pathlib.Path(os.path.abspath(path)).parts for path in paths}
    names = {}
    for path, own in parts.items():
        others = [p for p in parts.values() if p != own]
        n = next((n for n in range(1, len(own)) if all(own[-n:] != p[-n:] for p in others)), None)
        names[path] = path if n is None else os.path.join(*own[-n:])
    return names


def _print(name: str, results: Mapping[str, Result]) -> None:
    heading(name)
    ours = results[OURS].get("latency_s")
    rows = []
    for module, result in results.items():
        if "error" in result:
            continue
        latency, start = result["latency_s"], result["start_s"]
        ratio = f"{latency / ours:.2f}x as long" if ours and module != OURS else ""
        bytes_of = (result[key] for key in ("start_bytes", "run_bytes"))
        memory = ["-" if n is None else format_bytes(n) for n in bytes_of]
        times = format_seconds(latency), ratio, format_seconds(start)
        rows.append([module, *times, *memory, _difference(result)])
    if rows:
        titles = (
            "",
            "latency",
            "vs sardonyx",
            "start",
            "memory after start",
            "after a run",
            "differs",
        )
        table(rows, titles, right=range(1, 7), styles={0: "cyan"})
    errors = [[m, printable(r["error"])] for m, r in results.items() if "error" in r]
    table(errors, styles={0: "cyan", 1: "red"})
    say()


def _difference(result: Result) -> str:
    if "differs" not in result:
        return ""
    return "not comparable" if result["differs"] is None else f"{result['differs']:.1e}"


def _print_means(results: Sequence[Result], rivals: Sequence[str]) -> None:
    for rival in rivals:
        pairs = [(r["runtimes"][OURS], r["runtimes"].get(rival, {})) for r in results]
        ran = [(a, b) for a, b in pairs if "latency_s" in a and "latency_s" in b]
        if len(ran) > 1:  # the mean of one is already in its table
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

"""Ops as small models: their kernels timed as steps of a session, beside limits and onnxruntime.

Modules with cases (gemm, conv, int8, nbits, attention, elementwise, move, reduce) are commands by
themselves, and bench/kernels.py is all of them:

    python -m bench.conv [WORDS] [--threads 1,2] [--rivals] [--markdown]

A case is held against the time that its operations take at the rate of multiplications that wait
for nothing, or its bytes at the rate of plain reads and writes of as many bytes, whichever is
longer. Roofline, steps and rivals are interleaved, and the best of each counts. Weights that
models read from memory are there so many times that no cache has them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

import sardonyx
import sardonyx._native as native
from sardonyx.cli.profile_cost import Cost, cost
from sardonyx.cli.roofline import BandwidthPeak, ComputePeak, bytes_beyond_caches
from sardonyx.reports.trace import TimedStep

Array = np.ndarray[Any, np.dtype[Any]]
ROUNDS = 8
ROUND_S = 0.01  # of runs, and of each limit
OPSETS = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]


class Made(NamedTuple):
    """A model and its inputs."""

    model: bytes
    feed: dict[str, Array]


@dataclass(frozen=True)
class Case:
    """Something to be timed: steps by their kernels' names in a model that is made when needed."""

    family: str
    name: str
    kernels: tuple[str, ...]
    make: Callable[[], Made]
    goal: float  # share of the limit
    tolerance: float | None = 1e-4  # against onnxruntime; None: not compared


class Result(NamedTuple):
    """The result of a case."""

    case: Case
    threads: int
    seconds: float
    rate: str
    limit: str
    share: float
    rival: float | None  # seconds


def floats(*shape: int, seed: int = 0) -> Array:
    """Noise."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def one(
    op: str,
    feed: Mapping[str, Array],
    constants: Callable[[int], Sequence[Any]] = lambda seed: (),
    *,
    copies: int = 1,
    outputs: int = 1,
    **attrs: Any,
) -> Made:
    """A model of an op, once or several times with constants of its own; None: not given."""
    nodes, held, made = [], [], []
    for i in range(copies):
        given = list(feed)
        for j, constant in enumerate(constants(i)):
            given.append("" if constant is None else f"c{i}.{j}")
            if constant is not None:
                held.append(_initializer(constant, f"c{i}.{j}"))
        names = [f"y{i}.{j}" for j in range(outputs)]
        nodes.append(helper.make_node(op, given, names, **attrs))
        made += names
    return Made(serialized(nodes, feed, made, held), dict(feed))


def _initializer(constant: Any, name: str) -> onnx.TensorProto:
    if isinstance(constant, onnx.TensorProto):
        constant.name = name
        return constant
    return numpy_helper.from_array(np.asarray(constant), name)


def serialized(
    nodes: Sequence[Any], feed: Mapping[str, Array], outputs: Sequence[str], held: Sequence[Any]
) -> bytes:
    """A model of these nodes; what its outputs are is left to inference."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feed.items()
    ]
    infos = [onnx.ValueInfoProto(name=n) for n in outputs]
    graph = helper.make_graph(nodes, "case", inputs, infos, held)
    return bytes(helper.make_model(graph, opset_imports=OPSETS, ir_version=10).SerializeToString())


def copies_of(size_bytes: int) -> int:
    """Return how many copies of weights exceed all caches."""
    return max(1, -(-bytes_beyond_caches() // size_bytes))


class Ours:
    """A session whose steps are watched."""

    def __init__(self, case: Case, made: Made, threads: int) -> None:
        options = sardonyx.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_profiling, options.profile_file_prefix = True, os.devnull
        self._session = sardonyx.InferenceSession(made.model, options)
        self._case, self._feed = case, made.feed
        self.outputs = self._session.run(None, made.feed)
        self.seconds = float("inf")
        self.steps = self._run()[0]
        if not self.steps:
            ran = {e.step.kernel for e in self._events() if e.step is not None}
            raise ValueError(f"{case.name} has no step {case.kernels}, but {', '.join(ran)}")

    def _events(self) -> list[Any]:
        profile = self._session._profile
        assert profile is not None
        return profile.events

    def _run(self) -> tuple[list[TimedStep], float]:
        """The steps of a run, and their mean time."""
        self._events().clear()
        self._session.run(None, self._feed)
        events = [e for e in self._events() if e.step and e.step.kernel in self._case.kernels]
        seconds = statistics.fmean(e.end - e.begin for e in events) if events else 0.0
        return [e.step for e in events if e.step], seconds

    def measure(self) -> None:
        """Runs for a while."""
        end = time.perf_counter() + ROUND_S
        while True:
            self.seconds = min(self.seconds, self._run()[1])
            if time.perf_counter() >= end:
                return


class Theirs:
    """The same model in onnxruntime, as a whole."""

    def __init__(self, case: Case, made: Made, ours: Ours, threads: int) -> None:
        import onnxruntime  # type: ignore[import-untyped]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            made.model, options, providers=["CPUExecutionProvider"]
        )
        self._feed, self._count = made.feed, len(ours.steps)
        self.seconds = float("inf")
        outputs = self._session.run(None, made.feed)
        if case.tolerance is not None:
            for a, b in zip(ours.outputs, outputs, strict=True):
                gap = np.abs(a.astype(np.float64) - b).max() / max(np.abs(b).max(), 1e-30)
                assert gap <= case.tolerance, f"{case.name} differs by {gap:.1e}"

    def measure(self) -> None:
        """Runs for a while."""
        end = time.perf_counter() + ROUND_S
        while True:
            began = time.perf_counter()
            self._session.run(None, self._feed)
            now = time.perf_counter()
            self.seconds = min(self.seconds, (now - began) / self._count)
            if now >= end:
                return


def measure(case: Case, threads: int, rivals: bool) -> Result:
    """A case against its limit, all interleaved."""
    made = case.make()
    ours = Ours(case, made, threads)
    theirs = Theirs(case, made, ours, threads) if rivals else None
    costs = [cost(step) for step in ours.steps]
    computing, moving = _limits(costs, ours.steps, threads)
    for _ in range(ROUNDS):
        computing.measure(ROUND_S)
        ours.measure()
        moving.measure(ROUND_S)
        if theirs is not None:
            time.sleep(0.01)  # threads of the other, which stay awake for a while, fall asleep
            theirs.measure()
            time.sleep(0.01)
    operations = statistics.fmean(w.operations for w in costs)
    n_bytes = statistics.fmean(w.n_bytes for w in costs)
    times = operations / computing.rate, n_bytes / moving.rate
    seconds = ours.seconds
    if times[0] >= times[1]:
        rate, top = f"{operations / seconds / 1e9:.1f} GFLOP/s", f"{computing.rate / 1e9:.0f}"
    else:
        rate, top = f"{n_bytes / seconds / 1e9:.1f} GB/s", f"{moving.rate / 1e9:.0f}"
    rival = None if theirs is None else theirs.seconds
    return Result(case, threads, seconds, rate, top, max(times) / seconds, rival)


def _limits(
    costs: Sequence[Cost], steps: Sequence[TimedStep], threads: int
) -> tuple[ComputePeak, BandwidthPeak]:
    written = sum(o.n_bytes for s in steps for o in s.operands().outputs if o is not None)
    n_bytes = sum(w.n_bytes for w in costs)
    written = min(written, n_bytes)
    return ComputePeak(costs[0].type, threads), BandwidthPeak(n_bytes - written, written, threads)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every command that times cases."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("words", nargs="*", help="keep cases with one of these in their names")
    made.add_argument("--threads", default="1", help="counts of threads, by commas (default 1)")
    made.add_argument("--rivals", action="store_true", help="also onnxruntime")
    made.add_argument("--markdown", action="store_true", help="a table for documents")
    return made


def main(cases: Iterable[Case], given: argparse.Namespace) -> list[Result]:
    """Prints a line for each case, then those under their goals, the worst first."""
    chosen = [c for c in cases if _is_named(c, given.words)]
    results = []
    for threads in map(int, given.threads.split(",")):
        print(f"\n{native.isa}, {threads} thread{'s' * (threads > 1)}\n")
        _print_head(given)
        for case in chosen:
            results.append(measure(case, threads, given.rivals))
            _print(results[-1], given)
    under = sorted((r for r in results if r.share < r.case.goal), key=_shortfall)
    print(f"\n{len(under)} of {len(results)} under their goals, the worst first\n")
    _print_head(given)
    for result in under:
        _print(result, given)
    return results


def _is_named(case: Case, words: Sequence[str]) -> bool:
    title = f"{case.family} {case.name}"
    return not words or any(word in title for word in words)


def _shortfall(result: Result) -> float:
    return result.share / result.case.goal


def _cells(result: Result) -> list[str]:
    case = result.case
    return [
        case.family,
        case.name,
        str(result.threads),
        f"{result.seconds * 1e6:.1f} us",
        result.rate,
        result.limit,
        f"{result.share:.2f}",
        f"{case.goal:.2f}",
        "" if result.rival is None else f"{result.rival / result.seconds:.2f}x",
    ]


HEAD = ["family", "case", "threads", "time", "rate", "limit", "share", "goal", "onnxruntime"]
WIDTHS = (-18, -42, 7, 12, 16, 6, 6, 5, 11)


def _print_head(given: argparse.Namespace) -> None:
    _print_cells(HEAD, given)
    if given.markdown:
        print("|---|---|" + "--:|" * (len(HEAD) - 3 + bool(given.rivals)))


def _print(result: Result, given: argparse.Namespace) -> None:
    _print_cells(_cells(result), given)


def _print_cells(cells: list[str], given: argparse.Namespace) -> None:
    shown = cells if given.rivals else cells[:-1]
    if given.markdown:
        print(f"| {' | '.join(shown)} |", flush=True)
        return
    padded = (c.ljust(-w) if w < 0 else c.rjust(w) for c, w in zip(shown, WIDTHS, strict=False))
    print("  ".join(padded).rstrip(), flush=True)

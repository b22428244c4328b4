"""A graph of shape arithmetic, run in every way there is, and its facts held against its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import sardonyx
from sardonyx.errors import SardonyxError
from sardonyx.graph.dim import Dim, Size, evaluate, lone_name, symbols
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.graph.infer import infer
from sardonyx.graph.verify import verify
from sardonyx.load import LoadOptions, load
from sardonyx.load.source import read_model
from sardonyx.passes import PassOptions, lower, optimize
from tests.random_graphs.onnxruntime_process import OrtError, OrtProcess
from tests.shape_graphs.maker import N_RUNS, Array, ShapeGraph

MODES = ("fixed", "named", "open", "constant")
LEVELS = tuple(sardonyx.GraphOptimizationLevel)


def findings(graph: ShapeGraph, ort: OrtProcess | None = None) -> list[str]:
    """Return all faults; empty if there is none."""
    found = [f"onnxruntime: {text}" for text in _unlike_ort(graph, ort)] if ort is not None else []
    for mode in MODES:
        runs = range(N_RUNS) if mode in ("named", "open") else (0,)
        data = graph.model(mode)
        for level in LEVELS:
            where = f"{mode}, {level.name}"
            try:
                found += [f"{where}: {text}" for text in _results(graph, data, mode, level, runs)]
            except SardonyxError as error:
                found.append(f"{where}: {type(error).__name__}: {error}")
        try:
            found += [f"{mode}: {text}" for text in _facts(graph, data, runs)]
        except SardonyxError as error:
            found.append(f"{mode}: {type(error).__name__}: {error}")
    return found


def _unlike_ort(graph: ShapeGraph, ort: OrtProcess) -> Iterator[str]:
    """Yield differences of onnxruntime from the references; none for models that it refuses."""
    try:
        results = ort.run(graph.model("open"), [graph.feeds(run) for run in range(N_RUNS)])
    except OrtError:
        return
    for run, arrays in enumerate(results):
        for name, array in zip(graph.outputs, arrays, strict=True):
            yield from _differs(name, run, array, graph.values[name][run])


def _results(graph: ShapeGraph, data: bytes, mode: str, level: Any, runs: Any) -> Iterator[str]:
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    session = sardonyx.InferenceSession(data, options)
    for run in runs:
        feeds = {} if mode == "constant" else graph.feeds(run)
        for path, more in (("fast", ()), ("checked", (sardonyx.RunOptions(),))):
            arrays = session.run(None, feeds, *more)
            for name, array in zip(graph.outputs, arrays, strict=True):
                for text in _differs(name, run, array, graph.values[name][run]):
                    yield f"{path}: {text}"


def _differs(name: str, run: int, found: Array, wanted: Array) -> Iterator[str]:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        yield f"{name}, run {run}: {_shown(found)} and not {_shown(wanted)}"
    elif not np.array_equal(found, wanted):
        yield f"{name}, run {run}: {found.tolist()!r:.200} and not {wanted.tolist()!r:.200}"


def _shown(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _facts(graph: ShapeGraph, data: bytes, runs: Any) -> Iterator[str]:
    """Facts that the values contradict, after inference and after each part of the passes."""
    for level in LEVELS:
        whole = load(read_model(data), LoadOptions()).graph
        infer(whole, True, {})
        options = PassOptions(level=level)
        for stage, step in (("infer", None), ("optimize", optimize), ("lower", lower)):
            if step is not None:
                step(whole, options)
            verify(whole)
            for run in runs:
                for text in _contradictions(whole, graph, run):
                    yield f"facts after {stage} at {level.name}, run {run}: {text}"


def _contradictions(whole: Graph, graph: ShapeGraph, run: int) -> Iterator[str]:
    known = [(v, v.fact, graph.values[v.name][run]) for v in _named(whole, graph)]
    dims = _given(whole, graph, run)
    if any(g.kind.startswith("assumed") and not g.holds(dims) for g in whole.scope.guards):
        return  # a session makes another program for such sizes
    for value, fact, array in known:
        shape = fact.shape if isinstance(fact, Fact) else None
        if shape is not None and len(shape) != array.ndim:
            yield f"{value} has shape {array.shape}"
            return
        for d, size in zip(shape or (), array.shape, strict=False):
            name = lone_name(d)
            if name is not None and dims.setdefault(name, size) != size:
                yield f"{value}: {name} is {dims[name]} elsewhere, and {size} here"
    for value, fact, array in known:
        if not isinstance(fact, Fact):
            continue
        yield from _unequal(value, "shape", fact.shape, array.shape, dims)
        yield from _unequal(value, "elements", fact.sym, array.reshape(-1).tolist(), dims)
    for guard in whole.scope.guards:
        if guard.kind != "chosen" and guard.symbols <= dims.keys() and not guard.holds(dims):
            yield f"the guard {guard.needs} of {guard.node} does not hold with {dims}"


def _given(whole: Graph, graph: ShapeGraph, run: int) -> dict[str, int]:
    """The sizes that inputs give names to."""
    dims: dict[str, int] = {}
    for value in whole.inputs:
        sizes = graph.values[value.name][run].shape
        names = map(lone_name, value.tensor.dims)
        dims.update((n, s) for n, s in zip(names, sizes, strict=True) if n is not None)
    return dims


def _named(whole: Graph, graph: ShapeGraph) -> Iterator[Value]:
    for value in (*whole.inputs, *(v for n in whole.nodes for v in n.outputs)):
        if value.name in graph.values:
            yield value


def _unequal(
    value: Value, what: str, sizes: tuple[Size, ...] | None, numbers: Any, dims: dict[str, int]
) -> Iterator[str]:
    for size, number in zip(sizes or (), numbers, strict=False):
        if isinstance(size, Dim) and not symbols(size) <= dims.keys():
            continue
        if evaluate(size, dims) != number:
            yield f"{what} {sizes} of {value} should be {list(numbers)} with {dims}"
            return

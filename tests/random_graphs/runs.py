"""Runs a random graph on Sardonyx and onnxruntime, and compares with its references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

import sardonyx
from tests.oracle import CARRIERS, with_casts
from tests.random_graphs.compare import difference
from tests.random_graphs.graph import RandomGraph
from tests.random_graphs.onnxruntime_process import OrtProcess
from tests.two_paths import Disagree, agreed, checked, fast

BY_ONNX = {onnx.helper.np_dtype_to_tensor_dtype(np.dtype(c[1])): c for c in CARRIERS.values()}


@dataclass
class Outcome:
    """The outcome of a graph. `kind` is "same", or says who disagrees with whom."""

    seed: int
    kind: str
    detail: str = ""
    known: list[str] = field(default_factory=list)  # reasons of the table of known differences
    ort: str = ""  # why there is no word of onnxruntime
    rounded: list[str] = field(default_factory=list)  # ops of outputs that rounding explains


class Unsteady(Exception):
    """A session that breaks a promise, whatever the numbers are."""


def ours(graph: RandomGraph, outputs: Sequence[str], level: str = "") -> list[list[Any]]:
    """What Sardonyx makes of a graph by both paths, all sizes in one session, the first twice."""
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    if level:
        options.graph_optimization_level = sardonyx.GraphOptimizationLevel[level]
    model = graph.model(list(outputs)).SerializeToString()
    sessions = [
        sardonyx.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for _ in range(2)
    ]
    with np.errstate(all="ignore"):
        found = [_by_both(*sessions, r.feeds) for r in graph.runs]
        again = sessions[0].run(None, graph.runs[0].feeds)
    fed = [x for r in graph.runs for x in r.feeds.values() if isinstance(x, np.ndarray)]
    for name, first, second in zip(outputs, found[0], again, strict=True):
        if not isinstance(first, np.ndarray):
            continue
        if any(np.may_share_memory(first, x) for x in (second, *fed)):
            raise Unsteady(f"{name} shares memory with an input or another run's output")
        if (
            name not in graph.random
            and first.tobytes() != second.tobytes()
            and first.dtype != object
        ):
            raise Unsteady(f"{name} is not the same in a second run")
    return found


def _by_both(
    one: sardonyx.InferenceSession, other: sardonyx.InferenceSession, feeds: dict[str, Any]
) -> list[Any]:
    """The outputs of the fast path, which are those of the checked one in another session."""
    by_fast = fast(one, feeds)
    try:
        agreed(checked(other, feeds), by_fast)
    except Disagree as error:
        raise Unsteady(str(error)) from None
    return list(by_fast)  # type: ignore[arg-type]  # an error was raised before


def theirs(
    graph: RandomGraph, outputs: Sequence[str], ort: OrtProcess, *, plain: bool = False
) -> list[list[Any]]:
    """Return the results of onnxruntime."""
    model = graph.model(list(outputs), plain=plain)
    carried = [_carrier(graph, n) for n in outputs]
    if any(carried):
        model = with_casts(model, carried)
    feeds = [{n: _lent(x) for n, x in r.feeds.items()} for r in graph.runs]
    found = ort.run(model.SerializeToString(), feeds)
    return [
        [x if c is None else x.astype(c[1]) for x, c in zip(results, carried, strict=True)]
        for results in found
    ]


def _carrier(graph: RandomGraph, name: str) -> Any:
    type_ = graph.types.get(name)
    return BY_ONNX.get(type_.tensor_type.elem_type) if type_ is not None else None


def _lent(x: Any) -> Any:
    return x.astype(object) if isinstance(x, np.ndarray) and x.dtype.kind in "US" else x


def differences(
    graph: RandomGraph, outputs: Sequence[str], found: Sequence[Sequence[Any]]
) -> Iterator[tuple[str, str]]:
    """The outputs that are not what the references say, each with what is wrong."""
    steps = graph.steps_of()
    for run, results in zip(graph.runs, found, strict=True):
        for name, result in zip(outputs, results, strict=True):
            wanted = run.values[name]
            if name in graph.random:
                text = _alike(result, wanted)
            else:
                text = difference(result, wanted, [], steps[name])
                if text:  # rounding may explain it
                    noisy = [n.get(name) for n in graph.noisy(run)]
                    text = difference(result, wanted, noisy, steps[name])
                    if not text:
                        graph.rounded.add(name)
            if text:
                yield name, text


def _alike(found: Any, wanted: Any) -> str:
    same = np.shape(found) == np.shape(wanted) and np.asarray(found).dtype == wanted.dtype
    return "" if same else f"{wanted.dtype}{wanted.shape} expected, not {found!r:.60}"

"""Whether Sardonyx, onnxruntime and the references agree on a random graph."""

from __future__ import annotations

import contextlib

from sardonyx.errors import SardonyxError
from tests.random_graphs.blame import excuse
from tests.random_graphs.graph import RandomGraph
from tests.random_graphs.onnxruntime_process import OrtError, OrtProcess
from tests.random_graphs.runs import Outcome, differences, ours, theirs


def check(graph: RandomGraph, ort: OrtProcess) -> Outcome:
    """Whether all agree on a graph."""
    if graph.refusal:
        return _check_refusal(graph, ort)
    if not graph.outputs:
        return Outcome(graph.seed, "empty")
    try:
        found = ours(graph, graph.outputs)
    except SardonyxError as error:
        return Outcome(graph.seed, "refused natively", str(error)[:2000])
    for name, text in differences(graph, graph.outputs, found):
        return Outcome(graph.seed, "native differs", f"{name}: {text}")
    if graph.is_alone:
        return Outcome(graph.seed, "same", ort="not asked")
    return _check_theirs(graph, ort)


def _check_refusal(graph: RandomGraph, ort: OrtProcess) -> Outcome:
    """A node that our reference does not take: onnxruntime should not either."""
    with contextlib.suppress(SardonyxError):
        ours(graph, graph.outputs)
        return Outcome(graph.seed, "only natively", graph.refusal)
    try:
        theirs(graph, graph.outputs, ort)
    except OrtError as error:
        return Outcome(graph.seed, "both refuse", f"{graph.refusal}\n{error}")
    return Outcome(graph.seed, "we refuse", graph.refusal)


def _check_theirs(graph: RandomGraph, ort: OrtProcess) -> Outcome:
    try:
        found = theirs(graph, graph.outputs, ort)
    except OrtError as error:
        return Outcome(graph.seed, "same", ort=str(error))
    wrong = dict(differences(graph, graph.outputs, found))
    if not wrong:
        return Outcome(graph.seed, "same")
    return excuse(graph, wrong, ort)

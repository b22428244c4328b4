"""Whether Sardonyx, onnxruntime and the references agree on a random graph."""

from __future__ import annotations

import contextlib

from sardonyx.errors import SardonyxError
from tests.random_graphs.blame import excuse
from tests.random_graphs.graph import RandomGraph
from tests.random_graphs.onnxruntime_process import OrtError, OrtProcess
from tests.random_graphs.runs import Outcome, Unsteady, differences, ours, theirs

LEVELS = ("", "ORT_DISABLE_ALL")  # how graphs are optimized: as by default, and some not at all


def check(graph: RandomGraph, ort: OrtProcess) -> Outcome:
    """Whether all agree on a graph."""
    outcome = _checked(graph, ort)
    outcome.rounded = [n.op_type for n in graph.nodes if graph.rounded & set(n.output)]
    return outcome


def _checked(graph: RandomGraph, ort: OrtProcess) -> Outcome:
    if graph.refusal:
        return _check_refusal(graph, ort)
    if not graph.outputs:
        return Outcome(graph.seed, "empty")
    for level in LEVELS[: 1 + (graph.seed % 5 == 0)]:
        try:
            found = ours(graph, graph.outputs, level)
        except SardonyxError as error:
            return Outcome(graph.seed, "refused natively", str(error)[:2000])
        except Unsteady as error:
            return Outcome(graph.seed, "unsteady", str(error))
        for name, text in differences(graph, graph.outputs, found):
            return Outcome(graph.seed, "native differs", f"{name}: {text} {level}")
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

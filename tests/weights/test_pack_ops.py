"""Every op of ONNX goes into a pack and comes out of it with the facts that it had."""

from __future__ import annotations

import warnings
from typing import Any, Final

import pytest
from onnx.backend.test.loader import load_model_tests

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.passes import PassOptions, lower, optimize
from sardonyx.weights.pack.write import parcel

MORE: Final = ("nonpad", "with_past", "loop", "scan", "if_")  # more than one case of these


def cases() -> list[Any]:
    """One case of each op, and all of those that lower to several of ours."""
    seen: set[str] = set()
    chosen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of onnx, which computes the cases
        found = load_model_tests(kind="node")
    for case in found:
        op = case.model.graph.node[-1].op_type if case.model else case.name
        if op not in seen or any(word in case.name for word in MORE):
            seen.add(op)
            chosen.append(case)
    return chosen


def shown(graph: Graph) -> list[list[str]]:
    """Ops with the types and sizes of their results; sizes that data gives have no fixed name."""
    return [
        [str(node.op), *(_shown(v.fact) for v in node.outputs)] for node in graph.sorted_nodes()
    ]


def _shown(fact: Any) -> str:
    if not isinstance(fact, Fact) or fact.shape is None:
        return str(fact)
    sizes = ["?" if "#" in str(d) else str(d) for d in fact.shape]
    return f"{fact.dtype}{sizes}"


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_op(case: Any) -> None:
    made = load(case.model.SerializeToString() if case.model else f"{case.model_dir}/model.onnx")
    infer(made.graph)
    optimize(made.graph, PassOptions())
    lower(made.graph, PassOptions())
    assert shown(parcel(made).model.graph) == shown(made.graph)

"""Round trip of every ONNX op through a pack, with its facts."""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np
import pytest
from onnx import helper
from onnx.backend.test.loader import load_model_tests

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.ops.elementwise.chain import ELEMENTWISE
from sardonyx.pack.write import serialize
from sardonyx.passes import PassOptions, lower, optimize
from tests.op_cases import Case, all_cases
from tests.oracle import model_of

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
    assert shown(serialize(made).model.graph) == shown(made.graph)


def elementwise() -> list[Case]:
    """Of each op that a chain may have the case of float32 with the most inputs."""
    found: dict[tuple[str, str], Case] = {}
    for case in all_cases():
        key, floats = (case.domain, case.op), [x for x in case.inputs if x is not None]
        if (
            key not in ELEMENTWISE - {("", "Cast")}
            or case.fails
            or any(x.dtype != np.float32 for x in floats)
        ):
            continue
        if key not in found or len(floats) > len(found[key].inputs):
            found[key] = case
    return [*found.values()]


@pytest.mark.parametrize("case", elementwise(), ids=lambda c: f"{c.domain}.{c.op}".strip("."))
def test_op_in_a_chain(case: Case) -> None:
    model = model_of(case)
    model.graph.node.append(helper.make_node("Cast", ["y0"], ["f"], to=1))
    model.graph.node.append(helper.make_node("Neg", ["f"], ["end"]))
    model.graph.output[0].name = "end"
    made = load(model.SerializeToString())
    infer(made.graph)
    optimize(made.graph, PassOptions())
    lower(made.graph, PassOptions())
    assert "Chain" in {node.op.name for node in made.graph.nodes}
    assert shown(serialize(made).model.graph) == shown(made.graph)

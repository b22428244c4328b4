"""Random graphs with nodes here and there: wherever each runs, the results are the same."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

import sardonyx
from tests.random_graphs.graph import RandomGraph, make
from tests.random_graphs.runs import differences

pytest.importorskip("torch")
SEEDS = 96
AT_ONCE = 12
# Sizes that a device makes are read on the host, products have operands of unknown rank.
RARE = (50288, 50353, 52420, 52820, 76179, 76587, 92252, 98414)


def _name(nodes: Any, before: str = "node") -> Iterator[str]:
    """Gives every node a name of its own, those in bodies too."""
    for number, node in enumerate(nodes):
        node.name = f"{before}{number}"
        yield node.name
        for attribute in node.attribute:
            yield from _name(attribute.g.node, f"{node.name}.")


def _found(graph: RandomGraph, outputs: list[str]) -> list[list[Any]]:
    model = graph.model(outputs)
    rng = Random(graph.seed)
    names = list(_name(model.graph.node))
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry(
        "sardonyx.placement", ";".join(f"{n}=cpu" for n in names if rng.random() < 0.5)
    )
    session = sardonyx.InferenceSession(
        model, options, providers=[("TorchExecutionProvider", {"device": "cpu"})]
    )
    with np.errstate(all="ignore"):
        return [list(session.run(None, r.feeds)) for r in graph.runs]


def _wrong(seed: int) -> str:
    """Describe the difference from the references; empty if there is none."""
    graph = make(seed)
    if graph.refusal or not graph.outputs:
        return ""
    try:
        found = _found(graph, graph.outputs)
    except sardonyx.SardonyxError as error:
        return f"seed {seed}: {error}"
    said = [f"{name}: {text}" for name, text in differences(graph, graph.outputs, found)]
    return f"seed {seed}: {'; '.join(said)}" if said else ""


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_random_placements(first: int) -> None:
    wrong = [text for seed in range(first, first + AT_ONCE) if (text := _wrong(seed))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seed", RARE)
def test_rare_graphs(seed: int) -> None:
    assert not _wrong(seed)

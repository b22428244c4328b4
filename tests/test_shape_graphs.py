"""Shape arithmetic in exporters' spellings; tools/shape_graphs.py runs it by the thousand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.random_graphs.onnxruntime_process import OrtProcess
from tests.shape_graphs.check import findings
from tests.shape_graphs.spellings import TABLE, make

SEEDS = 24  # graphs of the suite
AT_ONCE = 8


@pytest.fixture(scope="module")
def ort() -> Iterator[OrtProcess]:
    process = OrtProcess()
    yield process
    process.stop()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_graphs(first: int, ort: OrtProcess) -> None:
    seeds = range(first, first + AT_ONCE)
    wrong = [f"seed {seed}: {text}" for seed in seeds for text in findings(make(seed), ort)[:3]]
    assert not wrong, "\n".join(wrong)


def test_graphs_are_deterministic() -> None:
    for seed in range(8):
        assert make(seed).model("named") == make(seed).model("named")


def test_every_spelling_is_drawn() -> None:
    """A step that is never drawn, such as one that never applies, would go unnoticed."""
    ops = {node.op_type for seed in range(120) for node in make(seed).nodes}
    assert len(ops) > 1.5 * len(TABLE)
    wanted = {"Range", "If", "NonZero", "CastLike", "ReduceProd", "Mod", "Half", "Where", "Tile"}
    assert wanted <= ops


def test_a_wrong_value_is_detected() -> None:
    graph = make(3)
    name = graph.outputs[0]
    graph.values[name] = [np.asarray(a + 1).astype(a.dtype) for a in graph.values[name]]
    found = findings(graph)
    assert any(": fast: " in text for text in found)
    assert any(": checked: " in text for text in found)

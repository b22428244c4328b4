"""docs/gradients.md names the ops with gradients, and those through which none passes."""

from __future__ import annotations

import re
from pathlib import Path

from sardonyx.autodiff.stops import NO_GRADIENT, STOPS, rule_for
from sardonyx.graph.op import GRADIENT, ML, ONNX, PREVIEW
from sardonyx.ops import all_ops

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gradients.md"


def tables_after(words: str) -> dict[str, str]:
    """The rows of the first table after some words, by their first cell."""
    text = PAGE.read_text().partition(words)[2]
    found = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert found is not None, words
    rows = [line.strip("|").split("|") for line in found[0].splitlines()[2:]]
    return {row[0].strip(): row[1] for row in rows}


def named(cells: list[str], names: set[str]) -> set[str]:
    """Those of the names that are words of the cells."""
    return names & {word for cell in cells for word in re.findall(r"\w+", cell)}


def test_the_table_has_every_op_with_a_gradient() -> None:
    ops = [op for op in all_ops() if op.domain in (ONNX, ML, PREVIEW)]
    rows = tables_after("## Ops with gradients")
    rows.pop("com.microsoft")
    listed = named(list(rows.values()), {op.name for op in ops})
    # Control flow has no rules: gradients of bodies are bodies.
    assert listed == {op.name for op in ops if rule_for(op) is not None or op.has_bodies}


def test_the_tables_have_every_op_without() -> None:
    stops = {name.rpartition(".")[2] for name in STOPS if not name.startswith(GRADIENT)}
    assert named(list(tables_after("Gradients stop without").values()), stops) == stops
    reasons = {name.rpartition(".")[2] for name in NO_GRADIENT}
    assert named(list(tables_after("a gradient is an error").values()), reasons) == reasons

"""Classifiers with string labels run on kernels; a Gather returns the strings."""

from __future__ import annotations

from typing import Any

import pytest

from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.passes import PassOptions, lower
from tests.cases.estimators import numbers
from tests.forests import by_ids, stump
from tests.op_cases import Case, case, f32
from tests.oracle import by_onnxruntime, difference, feeds_of, model_of

ML = "ai.onnx.ml"
WORDS = ["ten", "zwölf", "x"]


def forest(words: list[str]) -> Case:
    votes = [(i, 0.25 * i - 0.1) for i in range(len(words))]
    trees: list[Any] = [stump(votes, votes[:1]), stump(votes[-1:], votes, 0.1)]
    attrs = by_ids(trees, "class", classlabels_strings=words)
    return case("TreeEnsembleClassifier", f32(9, 1), domain=ML, opset=3, outputs=2, attrs=attrs)


def linear(words: list[str]) -> Case:
    n = len(words)
    attrs = {
        "coefficients": numbers(3, n),
        "intercepts": numbers(n),
        "classlabels_strings": words,
    }
    return case("LinearClassifier", f32(9, 3), domain=ML, outputs=2, attrs=attrs)


@pytest.mark.parametrize("case", [forest(WORDS), forest(WORDS[:2]), linear(WORDS)], ids=str)
def test_string_labels(case: Case) -> None:
    graph = load(model_of(case).SerializeToString()).graph
    infer(graph)
    lower(graph, PassOptions())
    classifier, gather = graph.sorted_nodes()
    assert [classifier.op.name, gather.op.name] == [case.op, "Gather"]
    assert [v.name for v in graph.outputs] == ["y0", "y1"]
    feeds = feeds_of(case)
    label, scores = classifier.op.run([feeds["x0"]], classifier.attrs)
    names = gather.inputs[0].const.read()  # type: ignore[union-attr]
    assert not difference([names[label], scores], by_onnxruntime(case), 64)


def test_integer_labels_are_not_rewritten() -> None:
    attrs = {**linear(WORDS).attrs, "classlabels_strings": None, "classlabels_ints": [3, 1, 2]}
    kept = case("LinearClassifier", f32(9, 3), domain=ML, outputs=2, attrs=attrs)
    graph = load(model_of(kept).SerializeToString()).graph
    infer(graph)
    lower(graph, PassOptions())
    assert [n.op.name for n in graph.nodes] == ["LinearClassifier"]

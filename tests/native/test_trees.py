"""Forests that no case of tests/cases has: shared branches, wide nodes, strided rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import infer_node
from sardonyx.ops import lookup
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu import lowered
from tests.cases.trees import deep
from tests.forests import Branch, Leaf, by_ids
from tests.kernels import SPLITS, run_call

ML = "ai.onnx.ml"


def node_of(name: str, x: Any, attrs: dict[str, Any]) -> tuple[Node, Value]:
    """A node over one input of the type and shape of an array."""
    op = lookup(ML, name)
    assert op is not None
    graph = Graph()
    value = constant(ArrayConst(np.ascontiguousarray(x)))
    value.fact = value.tensor.without_contents()
    arrays = {k: _as_attr(v) for k, v in attrs.items()}
    outputs = 2 if name.endswith("Classifier") else 1
    node = graph.add(op, [value], {**op.defaults, **arrays}, outputs)
    infer_node(graph.scope, node)
    return node, value


def _as_attr(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list) and isinstance(value[0], str):
        return tuple(v.encode() for v in value)
    if isinstance(value, list):
        return np.array(value, np.float32 if isinstance(value[0], float) else np.int64)
    return value


def check(node: Node, value: Value, x: Any, kernel: str) -> None:
    """The kernel of a node, on every ISA and any split, gives what its reference gives."""
    call = lowered(node)
    assert isinstance(call, Call)
    assert call.kernel == kernel
    expected = list(node.op.run([np.ascontiguousarray(x)], node.attrs))
    for isa in native.isas:
        for splits in SPLITS:
            found = run_call(call, node, {value: x}, {}, isa, splits)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 33, 130])
@pytest.mark.parametrize("classes", [1, 2, 5])
def test_rows(rows: int, classes: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
    x[::3, 1] = np.nan
    trees = [deep(seed, classes, depth=9) for seed in range(70)]
    attrs = by_ids(trees, "class", classlabels_int64s=list(range(7, 7 + classes)))
    node, value = node_of("TreeEnsembleClassifier", x, attrs)
    check(node, value, x, "trees_compact")


@pytest.mark.parametrize("rows", [3, 40])
def test_strided(rows: int) -> None:
    x = np.random.default_rng(0).standard_normal((9, 2 * rows)).astype(np.float32)[:, ::2].T
    node, value = node_of("TreeEnsembleRegressor", x, by_ids([deep(3, 1)], "target", n_targets=1))
    check(node, value, x, "trees_compact")


@pytest.mark.parametrize("rows", [3, 40])
def test_many_features(rows: int) -> None:
    x = np.random.default_rng(1).standard_normal((rows, 3000)).astype(np.float32)
    x[1] = np.nan
    trees = [deep(seed, 2, features=3000, depth=6) for seed in range(9)]
    attrs = by_ids(trees, "target", n_targets=2, aggregate_function="MAX")
    node, value = node_of("TreeEnsembleRegressor", x, attrs)
    check(node, value, x, "trees_wide")


@pytest.mark.parametrize("rows", [1, 5, 100])
def test_shared_subtrees(rows: int) -> None:
    """Both children of a branch may be the same branch, level after level."""
    tree: Any = Branch(1, 0.3, Leaf([(0, 1.0)]), Leaf([(0, 2.0)]))
    for i in range(6):
        tree = Branch(i % 2, 0.1 * i, tree, Leaf([(0, 3.0 + i)]))
    attrs = by_ids([tree, tree], "target", n_targets=1)
    inner = [i for i, m in enumerate(attrs["nodes_modes"]) if m != "LEAF"]
    for i in inner[:3]:
        attrs["nodes_falsenodeids"][i] = attrs["nodes_truenodeids"][i]
    x = np.random.default_rng(rows).standard_normal((rows, 2)).astype(np.float32)
    node, value = node_of("TreeEnsembleRegressor", x, attrs)
    check(node, value, x, "trees_compact")

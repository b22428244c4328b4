"""Random tree ensembles, compared with onnxruntime and a plain walk; lifetimes of their tables."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, ValueInfoProto, helper

import sardonyx
from sardonyx.errors import InvalidGraph
from sardonyx.ops.memoize import MAX_ENTRIES, Memoized
from sardonyx.ops.trees import ensemble as family
from sardonyx.ops.trees.forest import (
    BLOCK,
    EQ,
    LEQ,
    BranchNodes,
    LeafVotes,
    build_forest,
    check_acyclic,
)
from tests.forests import MODES, Branch, Leaf, Tree, by_ids, by_positions
from tests.two_paths import both

FEATURES = 3
# Few values, so that rows hit thresholds exactly; edges of float32 and of its zero.
VALUES = [-np.inf, -1.5, -1e-45, -0.0, 0.0, 0.25, 1.0, 3.0e38, np.inf, np.nan]
values = st.sampled_from([float(np.float32(v)) for v in VALUES])
weights = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 4.0])  # sums of these are exact


def trees(targets: int, *, sets: bool = False) -> st.SearchStrategy[Any]:
    """Trees of up to four levels."""
    leaf = st.builds(lambda t, w: Leaf([(t, w)]), st.integers(0, targets - 1), weights)
    members = st.lists(values.filter(lambda v: v == v), max_size=5) if sets else st.just([])

    def branch(child: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        feature, mode = st.integers(0, FEATURES - 1), st.sampled_from(MODES)
        return st.builds(Branch, feature, values, child, child, mode, st.booleans(), members)

    return branch(st.recursive(leaf, branch, max_leaves=8))


rows = st.lists(st.lists(values, min_size=FEATURES, max_size=FEATURES), min_size=1, max_size=6)


def walk(tree: Tree, row: Any) -> list[tuple[int, float]]:
    """The votes of the leaf that a row reaches, by the definition."""
    while isinstance(tree, Branch):
        x, v = row[tree.feature], type(row[0])(tree.value)
        if tree.members:
            true = any(x == type(x)(m) for m in tree.members)
        else:
            answers = (x <= v, x < v, x >= v, x > v, x == v, x != v)
            true = bool(answers[MODES.index(tree.mode)])
        true = true or (bool(np.isnan(x)) and tree.nan_true)
        tree = tree.true if true else tree.false
    return tree.votes


def summed(forest: list[Any], x: Any, targets: int) -> Any:
    total = np.zeros((len(x), targets))
    for i, row in enumerate(x):
        for tree in forest:
            for target, weight in walk(tree, row):
                total[i, target] += weight
    return total


def model(
    op: str, attrs: dict[str, Any], opset: int, dtype: Any = np.float32, outputs: int = 1
) -> bytes:
    names = [f"y{i}" for i in range(outputs)]
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given_ = helper.make_tensor_value_info("x", number, [None, None])
    node = helper.make_node(op, ["x"], names, domain="ai.onnx.ml", **attrs)
    made = [ValueInfoProto(name=n) for n in names]
    graph = helper.make_graph([node], "g", [given_], made)
    imports = [helper.make_opsetid("ai.onnx.ml", opset), helper.make_opsetid("", 20)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
    return bytes(proto.SerializeToString())


def ours(proto: bytes, x: Any) -> list[Any]:
    return list(both(lambda: sardonyx.InferenceSession(proto), {"x": x}))


def theirs(proto: bytes, x: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return list(onnxruntime.InferenceSession(proto, options).run(None, {"x": x}))


@given(
    st.lists(trees(2), min_size=1, max_size=4),
    rows,
    st.sampled_from(["SUM", "MIN", "MAX", "AVERAGE"]),
)
@settings(max_examples=60)
def test_regressors_agree_with_onnxruntime(forest: list[Any], data: Any, how: str) -> None:
    attrs = by_ids(forest, "target", n_targets=2, aggregate_function=how)
    proto, x = model("TreeEnsembleRegressor", attrs, 3), np.array(data, np.float32)
    np.testing.assert_allclose(ours(proto, x)[0], theirs(proto, x)[0], rtol=1e-6)


@given(st.lists(trees(3), min_size=1, max_size=4), rows, st.booleans())
@settings(max_examples=60)
def test_classifiers_agree_with_onnxruntime(forest: list[Any], data: Any, based: bool) -> None:
    base = {"base_values": [0.5, -1.0, 0.125]} if based else {}
    attrs = by_ids(forest, "class", classlabels_strings=["a", "b", "c"], **base)
    proto, x = model("TreeEnsembleClassifier", attrs, 3, outputs=2), np.array(data, np.float32)
    got, want = ours(proto, x), theirs(proto, x)
    assert got[0].tolist() == want[0].tolist()
    np.testing.assert_array_equal(got[1], want[1])


@given(st.lists(trees(1), min_size=1, max_size=4), rows, st.sampled_from([[], [0.25]]))
@settings(max_examples=60)
def test_two_classes_with_one_score_agree_with_onnxruntime(
    forest: Any, data: Any, base: Any
) -> None:
    more = {"base_values": base} if base else {}
    attrs = by_ids(forest, "class", classlabels_int64s=[7, 9], **more)
    proto, x = model("TreeEnsembleClassifier", attrs, 3, outputs=2), np.array(data, np.float32)
    got, want = ours(proto, x), theirs(proto, x)
    assert got[0].tolist() == want[0].tolist()
    np.testing.assert_array_equal(got[1], want[1])


@given(st.lists(trees(2, sets=True), min_size=1, max_size=4), rows)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ensembles_equal_a_plain_walk(dtype: Any, forest: list[Any], data: Any) -> None:
    x = np.array(data, dtype)
    proto = model("TreeEnsemble", by_positions(forest, dtype, n_targets=2), 5, dtype)
    np.testing.assert_array_equal(ours(proto, x)[0], summed(forest, x, 2))


def test_rows_beyond_one_block() -> None:
    tree = Branch(0, 0.5, Leaf([(0, 1.0)]), Branch(1, 0.0, Leaf([(0, 2.0)]), Leaf([(0, 3.0)])))
    forest: list[Tree] = [tree] * 64
    x = np.random.default_rng(1).standard_normal((BLOCK // 64 + 77, 2)).astype(np.float32)
    proto = model("TreeEnsembleRegressor", by_ids(forest, "target", n_targets=1), 3)
    want = np.where(x[:, 0] <= 0.5, 1, np.where(x[:, 1] <= 0, 2, 3)) * 64
    np.testing.assert_array_equal(ours(proto, x)[0][:, 0], want)


def nodes(
    if_true: list[int], if_false: list[int], roots: list[int], mode: int = LEQ
) -> BranchNodes:
    count = len(if_true)
    return BranchNodes(
        feature=np.zeros(count, np.int64),
        value=np.arange(count, dtype=np.float32),
        mode=np.full(count, mode),
        if_true=np.array(if_true),
        if_false=np.array(if_false),
        nan_true=np.zeros(count, bool),
        roots=np.array(roots),
        members={},
    )


def test_subtrees_may_be_shared() -> None:
    shared = nodes([2, 2, ~0], [1, ~1, ~2], [0], EQ)
    check_acyclic(shared)
    votes = LeafVotes(
        np.arange(3), np.ones(3, int), np.zeros(3, int), np.arange(3.0), np.zeros(1, int), True
    )
    forest = build_forest(shared, votes, np.float32)
    x = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    assert forest.leaves(x).tolist() == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("if_true", "if_false"),
    [([0], [~0]), ([1, 0], [~0, ~1]), ([1, 2, 1], [2, ~0, ~1]), ([1, 2, 0], [1, 2, ~0])],
)
def test_cycles_are_refused(if_true: list[int], if_false: list[int]) -> None:
    with pytest.raises(InvalidGraph, match="the trees have a cycle"):
        check_acyclic(nodes(if_true, if_false, [0]))


def test_a_long_chain_is_walked_without_recursion() -> None:
    count = 20_000
    chain = nodes([~0] * count, [*range(1, count), ~1], [0])
    votes = LeafVotes(
        np.arange(2), np.ones(2, int), np.zeros(2, int), np.arange(2.0), np.zeros(1, int), True
    )
    forest = build_forest(chain, votes, np.float32)
    assert forest.leaves(np.array([[3.0], [np.nan]], np.float32)).tolist() == [0, 1]


class Made:
    """Something that can be seen to die."""


def test_memoized_values_live_as_long_as_their_arrays() -> None:
    calls: list[int] = []

    def make(*parts: Any) -> Made:
        calls.append(len(parts))
        return Made()

    once: Memoized[Made] = Memoized(make)
    a, b = np.zeros(3), np.zeros(3)
    first = once(a, "x", None)
    assert once(a, "x", None) is first
    assert once(b, "x", None) is not first
    assert calls == [3, 3]
    alive = weakref.ref(first)
    del first, a
    gc.collect()
    assert alive() is None


def test_memoized_values_of_lists_are_bounded() -> None:
    once: Memoized[Made] = Memoized(lambda *parts: Made())
    lists = [[b"x"] for _ in range(MAX_ENTRIES + 50)]
    alive = [weakref.ref(once(part)) for part in lists]
    gc.collect()
    assert sum(ref() is not None for ref in alive) <= MAX_ENTRIES


def test_a_deleted_session_frees_its_forest() -> None:
    proto = model("TreeEnsembleRegressor", by_ids([Leaf([(0, 1.0)])], "target", n_targets=1), 3)
    gc.collect()
    before = len(family._FORESTS._made)
    session = sardonyx.InferenceSession(proto)
    session.run(None, {"x": np.zeros((1, 1), np.float32)})
    assert len(family._FORESTS._made) == before + 1
    del session
    gc.collect()
    assert len(family._FORESTS._made) == before


def test_membership_nodes_need_a_set_each() -> None:
    branch = Branch(0, 0.0, Leaf([(0, 1.0)]), Leaf([(0, 2.0)]), members=[1.0])
    attrs = by_positions([branch, branch], n_targets=1)
    attrs["membership_values"] = helper.make_tensor("", TensorProto.FLOAT, [2], [1.0, np.nan])
    with pytest.raises(InvalidGraph, match="1 sets for 2 membership nodes"):
        sardonyx.InferenceSession(model("TreeEnsemble", attrs, 5))

"""Tree ensembles for tests, as the attributes of nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
Votes = list[tuple[int, float]]


@dataclass
class Leaf:
    votes: Votes


@dataclass
class Branch:
    feature: int
    value: float
    true: Branch | Leaf
    false: Branch | Leaf
    mode: str = "BRANCH_LEQ"
    nan_true: bool = False
    members: list[float] = field(default_factory=list)


Tree = Branch | Leaf


def stump(true: Votes, false: Votes, value: float = 0.5, **how: Any) -> Branch:
    """One comparison of the first feature, and two leaves."""
    return Branch(0, value, Leaf(true), Leaf(false), **how)


def by_ids(trees: list[Tree], kind: str, **more: Any) -> dict[str, Any]:
    """Attributes of a TreeEnsembleClassifier (kind: class) or TreeEnsembleRegressor (target)."""
    names = (
        "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true"
    )
    nodes: list[list[Any]] = []
    votes: list[tuple[int, int, int, float]] = []

    def add(tree: int, node: Tree, at: int) -> int:
        """Writes a node and all below it from a position on; returns the next free position."""
        row = len(nodes)
        if isinstance(node, Leaf):
            nodes.append([tree, at, 0, "LEAF", 0.0, 0, 0, 0])
            votes.extend((tree, at, target, weight) for target, weight in node.votes)
            return at + 1
        nodes.append([])
        after_true = add(tree, node.true, at + 1)
        end = add(tree, node.false, after_true)
        head = [tree, at, node.feature, node.mode, node.value]
        nodes[row] = [*head, at + 1, after_true, int(node.nan_true)]
        return end

    for number, tree in enumerate(trees):
        add(number, tree, 0)
    columns = dict(zip(names.split(), map(list, zip(*nodes, strict=True)), strict=True))
    fields = zip(("treeids", "nodeids", "ids", "weights"), zip(*votes, strict=True), strict=False)
    said = {f"{kind}_{name}": list(column) for name, column in fields}
    return {**{f"nodes_{k}": v for k, v in columns.items()}, **said, **more}


def by_positions(trees: list[Branch], dtype: Any = np.float32, **more: Any) -> dict[str, Any]:
    """Attributes of a TreeEnsemble; each leaf has one vote."""
    nodes: list[list[Any]] = []
    leaves: list[tuple[int, float]] = []
    sets: list[list[float]] = []

    def child(node: Tree) -> tuple[int, int]:
        if isinstance(node, Leaf):
            leaves.append(node.votes[0])
            return len(leaves) - 1, 1
        return add(node), 0

    def add(node: Branch) -> int:
        at = len(nodes)
        code = 6 if node.members else MODES.index(node.mode)
        if code == 6:
            sets.append(node.members)
        nodes.append([node.feature, code, node.value])
        true, false = child(node.true), child(node.false)
        nodes[at] += [*true, *false, int(node.nan_true)]
        return at

    roots = [add(tree) for tree in trees]
    feature, mode, value, true, true_leaf, false, false_leaf, nan = map(
        list, zip(*nodes, strict=True)
    )
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    attrs = {
        "tree_roots": roots, "nodes_featureids": feature, "nodes_truenodeids": true,
        "nodes_trueleafs": true_leaf, "nodes_falsenodeids": false, "nodes_falseleafs": false_leaf,
        "nodes_missing_value_tracks_true": nan, "leaf_targetids": [t for t, _ in leaves],
        "nodes_modes": helper.make_tensor("modes", TensorProto.UINT8, [len(mode)], mode),
        "nodes_splits": helper.make_tensor("splits", number, [len(value)], value),
        "leaf_weights": helper.make_tensor("", number, [len(leaves)], [w for _, w in leaves]),
    }  # fmt: skip
    if sets:
        values = [v for members in sets for v in (*members, np.nan)]
        attrs["membership_values"] = helper.make_tensor("members", number, [len(values)], values)
    return {**attrs, **more}

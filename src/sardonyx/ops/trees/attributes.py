"""Reads and checks the attributes of tree ensembles, by node ids (before v5) or by positions."""

from __future__ import annotations

from itertools import repeat
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.const import Const
from sardonyx.graph.dtype import U8
from sardonyx.ops.arrays import Array, distinct
from sardonyx.ops.trees.forest import LEQ, MEMBER, NEQ, BranchNodes, Forest, LeafVotes, build_forest

LEAF: Final = 7
MODES: Final = {
    b"BRANCH_LEQ": LEQ, b"BRANCH_LT": 1, b"BRANCH_GTE": 2, b"BRANCH_GT": 3, b"BRANCH_EQ": 4,
    b"BRANCH_NEQ": NEQ, b"LEAF": LEAF,
}  # fmt: skip


# The attributes that `by_ids` and `by_positions` read, in the order of their parameters.
NODE_FIELDS: Final = (
    "treeids", "nodeids", "featureids", "modes", "values", "values_as_tensor", "truenodeids",
    "falsenodeids", "missing_value_tracks_true",
)  # fmt: skip
VOTE_FIELDS: Final = ("treeids", "nodeids", "ids", "weights", "weights_as_tensor")
POSITION_FIELDS: Final = (
    "tree_roots", "nodes_featureids", "nodes_modes", "nodes_splits", "nodes_truenodeids",
    "nodes_trueleafs", "nodes_falsenodeids", "nodes_falseleafs", "nodes_missing_value_tracks_true",
    "membership_values", "leaf_targetids", "leaf_weights",
)  # fmt: skip


def floats(const: Const, name: str) -> Array:
    """Return the numbers of a tensor attribute."""
    if not const.dtype.is_float:
        raise InvalidGraph(f"{name} must be a tensor of floats, got {const.dtype}")
    return const.read().reshape(-1)


def by_ids(dtype: Any, kind: str, n_targets: int, *attributes: Any) -> Forest:
    """Build the forest of a TreeEnsembleClassifier (kind class) or -Regressor (kind target).

    The attributes are the NODE_FIELDS (nodes_*), then the VOTE_FIELDS (class_* or target_*).
    """
    nodes, votes = attributes[: len(NODE_FIELDS)], attributes[len(NODE_FIELDS) :]
    trees, ids, features, modes, values, value_tensor, if_true, if_false, tracks = nodes
    if value_tensor is not None:
        values = floats(value_tensor, "nodes_values_as_tensor")
    mode = _modes(modes)
    columns = {
        "nodes_treeids": trees, "nodes_nodeids": ids, "nodes_featureids": features,
        "nodes_values": values, "nodes_truenodeids": if_true, "nodes_falsenodeids": if_false,
    }  # fmt: skip
    if tracks is not None:
        columns["nodes_missing_value_tracks_true"] = tracks
    _same_length("nodes_modes", len(mode), columns)
    index = _NodeIndex(trees, ids)
    is_leaf = mode == LEAF
    # Branches and leaves are numbered separately; a leaf is stored as ~number.
    position = np.where(is_leaf, ~(np.cumsum(is_leaf) - 1), np.cumsum(~is_leaf) - 1)
    branch = np.flatnonzero(~is_leaf)
    _, first = np.unique(trees, return_index=True)
    branches = BranchNodes(
        feature=_features(np.asarray(features)[branch]),
        value=np.asarray(values)[branch],
        mode=mode[branch],
        if_true=position[index.find(trees[branch], if_true[branch], "the true child of a node")],
        if_false=position[index.find(trees[branch], if_false[branch], "the false child of a node")],
        nan_true=np.zeros(len(branch), bool) if tracks is None else tracks[branch] != 0,
        roots=position[np.sort(first)],
        members={},
    )
    return build_forest(branches, _leaf_votes(kind, n_targets, index, position, votes), dtype)


class _NodeIndex:
    """An index of nodes by tree id and node id."""

    def __init__(self, trees: Array, nodes: Array) -> None:
        self.trees, self.nodes = distinct(trees), distinct(nodes)
        keys = self._key(trees, nodes)[0]
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        twice = np.flatnonzero(self.keys[1:] == self.keys[:-1])
        if twice.size:
            i = self.order[twice[0]]
            raise InvalidGraph(f"tree {trees[i]} has two nodes with the id {nodes[i]}")

    def _key(self, trees: Array, nodes: Array) -> tuple[Array, Array]:
        """Return one number per pair, and whether both ids exist."""
        # Ids are arbitrary int64: their ranks among the distinct ids make a dense key.
        t = np.minimum(np.searchsorted(self.trees, trees), len(self.trees) - 1)
        n = np.minimum(np.searchsorted(self.nodes, nodes), len(self.nodes) - 1)
        return t * len(self.nodes) + n, (self.trees[t] == trees) & (self.nodes[n] == nodes)

    def find(self, trees: Array, nodes: Array, what: str) -> Array:
        """Return the positions of nodes; raise for one that does not exist."""
        keys, is_known = self._key(trees, nodes)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        wrong = np.flatnonzero(~is_known | (self.keys[at] != keys))
        if wrong.size:
            i = wrong[0]
            node = f"node {nodes[i]} of tree {trees[i]}"
            raise InvalidGraph(f"{what} is {node}, which does not exist")
        return self.order[at]


def _modes(modes: Any) -> Array:
    if not modes:
        raise InvalidGraph("the tree ensemble has no nodes: nodes_modes is missing or empty")
    codes = np.fromiter(map(MODES.get, modes, repeat(-1)), np.int64, len(modes))
    if codes.min() < 0:
        odd = modes[int(np.argmin(codes))].decode(errors="replace")
        choices = ", ".join(m.decode() for m in MODES)
        raise InvalidGraph(f"nodes_modes must be among {choices}, got {odd}")
    return codes


def _same_length(name: str, length: int, columns: dict[str, Any]) -> None:
    for other, values in columns.items():
        size = 0 if values is None else len(values)
        if size != length:
            raise InvalidGraph(f"{name} has {length} entries, and {other} has {size}")


def _features(features: Array) -> Array:
    if features.size and features.min() < 0:
        raise InvalidGraph(f"nodes_featureids has the negative number {features.min()}")
    return features


def _leaf_votes(
    kind: str, n_targets: int, index: _NodeIndex, position: Array, votes: tuple[Any, ...]
) -> LeafVotes:
    """Return the votes sorted by leaf; votes of branches are ignored."""
    trees, nodes, ids, weights, weight_tensor = votes
    if weight_tensor is not None:
        weights = floats(weight_tensor, f"{kind}_weights_as_tensor")
    columns = {f"{kind}_treeids": trees, f"{kind}_nodeids": nodes, f"{kind}_weights": weights}
    _same_length(f"{kind}_ids", 0 if ids is None else len(ids), columns)
    n_leaves = int(np.count_nonzero(position < 0))
    if ids is None:
        none = np.zeros(0, np.int64)
        return _sorted_votes(none, none, none, n_leaves)
    _check_inside(f"{kind}_ids", ids, n_targets)
    at = position[index.find(trees, nodes, f"{kind}_nodeids")]
    on_leaf = np.flatnonzero(at < 0)
    order = on_leaf[np.argsort(~at[on_leaf], kind="stable")]
    return _sorted_votes(~at[order], ids[order], weights[order], n_leaves)


def _sorted_votes(leaf: Array, target: Array, weight: Array, n_leaves: int) -> LeafVotes:
    first = np.searchsorted(leaf, np.arange(n_leaves + 1))
    return LeafVotes(
        first=first[:-1],
        count=np.diff(first),
        target=target,
        weight=weight.astype(np.float64),
        voters=distinct(target),
        probable=not np.any(weight < 0),
    )


def by_positions(dtype: Any, n_targets: int, *attributes: Any) -> Forest:
    """Build the forest of a TreeEnsemble from the attributes POSITION_FIELDS."""
    roots, features, modes, splits, *children, tracks, members, target, weights = attributes
    if_true, true_leaf, if_false, false_leaf = children
    if modes.dtype is not U8:
        raise InvalidGraph(f"nodes_modes must be a tensor of u8, got {modes.dtype}")
    mode, count = modes.read().reshape(-1).astype(np.int64), modes.count
    value = floats(splits, "nodes_splits")
    columns = {
        "nodes_featureids": features, "nodes_splits": value,
        "nodes_truenodeids": if_true, "nodes_trueleafs": true_leaf,
        "nodes_falsenodeids": if_false, "nodes_falseleafs": false_leaf,
    }  # fmt: skip
    if tracks is not None:
        columns["nodes_missing_value_tracks_true"] = tracks
    _same_length("nodes_modes", count, columns)
    if mode.max(initial=0) > MEMBER:
        raise InvalidGraph(f"nodes_modes has {mode.max()}, which is outside [0, {MEMBER}]")
    weight = floats(weights, "leaf_weights")
    _same_length("leaf_targetids", len(target), {"leaf_weights": weight})
    _check_inside("leaf_targetids", target, n_targets)
    _check_inside("tree_roots", roots, count)
    branches = BranchNodes(
        feature=_features(features),
        value=value,
        mode=mode,
        if_true=_children("true", if_true, true_leaf, count, len(target)),
        if_false=_children("false", if_false, false_leaf, count, len(target)),
        nan_true=np.zeros(count, bool) if tracks is None else tracks != 0,
        roots=roots.copy(),
        members=_sets(np.flatnonzero(mode == MEMBER), members),
    )
    votes = _sorted_votes(np.arange(len(target)), target.copy(), weight, len(target))
    return build_forest(branches, votes, dtype)


def _check_inside(name: str, values: Array, size: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= size):
        odd = values.min() if values.min() < 0 else values.max()
        raise InvalidGraph(f"{name} has {odd}, which is outside [0, {size})")


def _children(which: str, ids: Array, is_leaf: Array, n_nodes: int, n_leaves: int) -> Array:
    _check_inside(f"nodes_{which}nodeids of nodes", ids[is_leaf == 0], n_nodes)
    _check_inside(f"nodes_{which}nodeids of leaves", ids[is_leaf != 0], n_leaves)
    return np.where(is_leaf != 0, ~ids, ids)


def _sets(branches: Array, members: Any) -> dict[int, Array]:
    """Return the set of each membership branch; NaN separates the sets."""
    values = np.zeros(0) if members is None else floats(members, "membership_values")
    ends = np.flatnonzero(np.isnan(values))
    parts = np.split(values, ends)
    sets = [parts[0], *(p[1:] for p in parts[1:])]
    if len(ends) and not sets[-1].size:
        sets.pop()  # a NaN may also follow the last set
    if len(branches) and len(sets) != len(branches):
        counts = f"{len(sets)} sets for {len(branches)} membership nodes"
        raise InvalidGraph(f"membership_values has {counts}")
    return dict(zip(branches.tolist(), sets, strict=False))

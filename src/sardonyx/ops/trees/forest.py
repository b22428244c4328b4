"""A forest in flat arrays: rows descend all trees together, one level at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidGraph
from sardonyx.ops.arrays import Array

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)  # comparisons, numbered as TreeEnsemble does

BLOCK: Final = 2**17  # rows x trees that descend together: their positions stay in the cache


@frozen
class BranchNodes:
    """The branches of a model. A child is the position of a branch, or ~leaf."""

    feature: Array
    value: Array
    mode: Array
    if_true: Array
    if_false: Array
    nan_true: Array  # whether a missing value (NaN) takes the true branch
    roots: Array
    members: Mapping[int, Array]  # the set of each membership branch


@frozen
class LeafVotes:
    """The votes (weights for targets) of leaves: `count[leaf]` from `first[leaf]` on."""

    first: Array
    count: Array
    target: Array
    weight: Array
    voters: Array  # the targets that have votes
    probable: bool  # no weight is negative


@frozen
class Forest:
    """Branches that all compare x <= threshold, and the votes of the leaves."""

    feature: Array
    threshold: Array
    child: Array  # two per branch: if false, if true
    nan_true: Array | None  # None where missing values always take the false branch
    roots: Array
    votes: LeafVotes
    width: int  # features that a row must have

    @property
    def n_trees(self) -> int:
        return len(self.roots)

    def leaves(self, x: Array) -> Array:
        """Return the leaf that each row reaches in each tree."""
        values, width = np.ascontiguousarray(x).reshape(-1), x.shape[1]
        tracks = self.nan_true if self.nan_true is not None and np.isnan(values).any() else None
        at = np.tile(self.roots, len(x))
        active = np.flatnonzero(at >= 0)
        node, start = at[active], active // max(self.n_trees, 1) * width
        # `at` holds the position of each (row, tree) pair; pairs that reach a leaf leave `active`.
        while active.size:
            value = values[start + self.feature[node]]
            yes = value <= self.threshold[node]
            if tracks is not None:
                yes |= np.isnan(value) & tracks[node]
            node = self.child[2 * node + yes]
            is_branch = node >= 0
            at[active[~is_branch]] = node[~is_branch]
            active, node, start = active[is_branch], node[is_branch], start[is_branch]
        return ~at

    def scores(self, x: Array, n_targets: int, aggregate: bytes) -> tuple[Array, Array]:
        """Return the votes for each row and target, aggregated in float64, and which have any."""
        total = np.zeros((len(x), n_targets))
        voted = np.zeros((len(x), n_targets), bool)
        step = max(1, BLOCK // max(self.n_trees, 1))
        for begin in range(0, len(x), step):
            part = slice(begin, begin + step)
            total[part], voted[part] = self._block(x[part], n_targets, aggregate)
        return total, voted

    def _block(self, x: Array, n_targets: int, aggregate: bytes) -> tuple[Array, Array]:
        leaf = self.leaves(x)
        row = np.arange(len(x)).repeat(self.n_trees)
        begin, count = self.votes.first[leaf], self.votes.count[leaf]
        if np.all(count == 1):
            vote = begin
        else:  # concatenate the vote ranges of all leaves
            vote = (begin - np.cumsum(count) + count).repeat(count) + np.arange(count.sum())
            row = row.repeat(count)
        # One cell per (row, target); bincount adds in float64 in the order of the trees.
        cell = row * n_targets + self.votes.target[vote]
        total = _aggregate_votes(cell, self.votes.weight[vote], len(x) * n_targets, aggregate)
        if aggregate == b"AVERAGE":
            total = total / self.n_trees
        voted = np.bincount(cell, minlength=len(total)) > 0
        shape = (len(x), n_targets)
        return np.where(voted, total, 0.0).reshape(shape), voted.reshape(shape)


def _aggregate_votes(cell: Array, weight: Array, size: int, aggregate: bytes) -> Array:
    if aggregate in (b"SUM", b"AVERAGE"):
        return np.bincount(cell, weight, size)
    least: Any = np.minimum if aggregate == b"MIN" else np.maximum
    total = np.full(size, np.inf if aggregate == b"MIN" else -np.inf)
    least.at(total, cell, weight)
    return total


def build_forest(nodes: BranchNodes, votes: LeafVotes, dtype: Any) -> Forest:
    """Build the forest for rows of a float type."""
    check_acyclic(nodes)
    feature, threshold, if_true, if_false, nan = _as_less_equal(nodes, np.dtype(dtype))
    return Forest(
        feature=feature,
        threshold=threshold,
        child=np.stack([if_false, if_true], axis=1).reshape(-1),
        nan_true=nan if nan.any() else None,
        roots=nodes.roots,
        votes=votes,
        width=int(feature.max(initial=-1)) + 1,
    )


def _next_below(values: Array) -> Array:
    """Return the next smaller numbers: x < v is x <= below(v). Below -inf is NaN: never true."""
    return np.where(values == -np.inf, np.nan, np.nextafter(values, -np.inf)).astype(values.dtype)


def _as_less_equal(nodes: BranchNodes, dtype: Any) -> tuple[Array, ...]:
    """Rewrite every comparison to x <= threshold, so that a level needs one comparison.

    Greater-than swaps the children; equality is two branches, x <= v and x <= below(v); set
    membership is a binary search tree.
    """
    mode, value = nodes.mode, nodes.value.astype(dtype)
    never = np.isnan(value) & (mode != MEMBER)  # comparisons with a NaN threshold are false
    swap = (np.isin(mode, (GTE, GT)) & ~never) | (mode == NEQ)
    yes = np.where(swap, nodes.if_false, nodes.if_true)
    no = np.where(swap, nodes.if_true, nodes.if_false)
    nan = (nodes.nan_true | (mode == NEQ)) ^ swap

    pairs = np.flatnonzero(np.isin(mode, (EQ, NEQ)) & ~never)
    threshold = np.where(np.isin(mode, (LT, GTE)), _next_below(value), value)
    extra: list[tuple[Array, ...]] = [
        (nodes.feature[pairs], _next_below(value[pairs]), no[pairs], yes[pairs], pairs < 0)
    ]
    first = yes.copy()
    first[pairs] = len(mode) + np.arange(len(pairs))

    searches: list[Branch] = []
    at = len(mode) + len(pairs)
    for i, members in nodes.members.items():
        leaf = (int(nodes.feature[i]), np.nan, int(yes[i]), int(no[i]), bool(nan[i]))
        root = _search_tree(searches, at, np.unique(members.astype(dtype)), leaf)
        _, threshold[i], first[i], no[i], nan[i] = root
    if searches:
        extra.append(tuple(np.array(column) for column in zip(*searches, strict=True)))
    branches = (nodes.feature, threshold, first, no, nan)
    kinds = (np.intp, dtype, np.intp, np.intp, np.bool_)
    return tuple(
        np.concatenate(columns).astype(kind)
        for *columns, kind in zip(branches, *extra, kinds, strict=True)
    )


Branch = tuple[int, Any, int, int, bool]  # feature, threshold, true and false child, NaN is true


def _search_tree(branches: list[Branch], at: int, members: Array, leaf: Branch) -> Branch:
    """Return the root of a binary search among sorted members; append its descendants.

    Positions of appended branches count from `at`. `leaf` has the outcomes of the search.
    """
    feature, _, yes, no, nan_true = leaf

    def add(branch: Branch) -> int:
        branches.append(branch)
        return at + len(branches) - 1

    def search(low: int, high: int, nan: bool) -> Branch:
        if low == high:
            return feature, np.nan, yes, no, nan
        if high - low == 1:  # equality: x <= v, and not x <= below(v)
            value = members[low:high]
            second = add((feature, _next_below(value)[0], no, yes, False))
            return feature, value[0], second, no, nan
        mid = (low + high) // 2
        left, right = add(search(low, mid, False)), add(search(mid, high, nan))
        return feature, members[mid - 1], left, right, False

    return search(0, len(members), nan_true)


def check_acyclic(nodes: BranchNodes) -> None:
    """Raise if branches form a cycle, in which rows would never reach a leaf."""
    children = np.concatenate([nodes.if_true, nodes.if_false])
    parents = np.bincount(children[children >= 0], minlength=len(nodes.mode))
    roots = nodes.roots[nodes.roots >= 0]
    if not np.any(parents > 1) and not np.any(parents[roots]):
        return  # one parent per branch and none for roots: everything reachable is a tree
    if_true, if_false = nodes.if_true.tolist(), nodes.if_false.tolist()
    _search_cycle(roots.tolist(), lambda i: (if_true[i], if_false[i]))


def _search_cycle(roots: list[int], children: Callable[[int], tuple[int, int]]) -> None:
    """Search a cycle depth first. Shared branches are allowed: categorical splits use them."""
    on_path, visited = 1, 2
    state: dict[int, int] = {}
    stack = list(roots)
    while stack:
        node = stack[-1]
        if state.get(node):
            stack.pop()
            state[node] = visited
            continue
        state[node] = on_path
        for child in children(node):
            if child < 0:
                continue
            if state.get(child) == on_path:
                raise InvalidGraph(f"the trees have a cycle through branch {child}")
            if child not in state:
                stack.append(child)

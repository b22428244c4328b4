"""Tree ensembles on the CPU: forests packed so that siblings lie side by side."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen, mutable
from sardonyx.graph.dtype import F16, F32, STRING
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import ML
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import labels_of
from sardonyx.ops.memoize import Memoized
from sardonyx.ops.trees.ensemble import (
    AGGREGATES,
    forest_by_ids,
    forest_by_positions,
    numbers,
    target_count,
)
from sardonyx.ops.trees.forest import Forest, LeafVotes
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.scores import BEST, POSTS, VALUES, YES_NO, Verdict, held, labels_value

FEATURES, HOP, LEAVES = 2**11, 2**19, 2**22  # what a compact node has room for
MANY: Final = 2**22  # cells of the table that says which tree votes for which target
ENDLESS: Final = 2**31 - 1


@frozen
class Packing:
    """A forest as kernels/trees/forest.h has it."""

    nodes: Value
    roots: Value  # start, steps to most leaves, steps to all, for each tree
    is_compact: bool
    steps: int  # of a walk, on average
    tree: Array  # of each leaf that a walk may end at
    leaf: Array


@mutable
class _Entries:
    """Nodes in the making, level by level: the branch or ~leaf behind each, and where it leads."""

    ref: Array
    tree: Array
    level: Array
    link: Array
    asks: Array  # whether it is a branch that is reached for the first time


def _entries(child: Array, roots: Array) -> _Entries:
    """Breadth first; a branch that is reached again is an entry that leads to the first one.

    Such an entry asks nothing: its threshold stays NaN, as that of a leaf.
    """
    seen = np.full(len(child) // 2 + 1, -1, np.int64)  # the last belongs to leaves
    ref, tree, base = roots.astype(np.int64), np.arange(len(roots)), 0
    columns: list[tuple[Array, ...]] = []
    while len(ref):
        ids = base + np.arange(len(ref))
        is_branch = ref >= 0
        fresh = np.flatnonzero(is_branch)
        fresh = fresh[seen[ref[fresh]] < 0][::-1]
        seen[ref[fresh]] = ids[fresh]  # of equal ones the last to be written, the first, stays
        first = seen[np.maximum(ref, -1)]
        is_grown = is_branch & (first == ids)
        grown = ref[is_grown]
        link = np.where(is_branch, first, ids)
        link[is_grown] = base + len(ref) + 2 * np.arange(len(grown))
        columns.append((ref, tree, np.full(len(ref), len(columns)), link, is_grown))
        base += len(ref)
        ref = child.reshape(-1, 2)[grown].reshape(-1).astype(np.int64)
        tree = tree[is_grown].repeat(2)
    return _Entries(*map(np.concatenate, zip(*columns, strict=True)))


def _pack(
    feature: Array, threshold: Array, child: Array, nan_true: Array | None, roots: Array, width: int
) -> Packing:
    entries = _entries(child, roots)
    order = np.argsort(entries.tree, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    ref, tree, level = entries.ref[order], entries.tree[order], entries.level[order]
    hop = place[entries.link[order]] - np.arange(len(order))
    is_leaf = ref < 0
    leaf = np.where(is_leaf, ~ref, 0)
    asks = entries.asks[order]
    is_compact = (
        threshold.dtype == np.float32
        and width <= FEATURES
        and int(leaf.max(initial=0)) < LEAVES
        and -HOP <= int(hop.min()) <= int(hop.max()) < HOP
    )
    branch = ref[asks]
    column = np.zeros(len(ref), np.uint32)
    column[asks] = feature[branch]
    is_yes = np.zeros(len(ref), np.uint32)
    is_yes[asks] = 0 if nan_true is None else nan_true[branch]
    nodes = (_compact if is_compact else _wide)(column, is_yes, hop, leaf)
    nodes["threshold"][asks] = threshold[branch]
    return Packing(
        nodes=held(nodes.view(np.uint8)),
        roots=held(_roots(tree, level, is_leaf, has_jumps=not np.array_equal(asks, ~is_leaf))),
        is_compact=is_compact,
        steps=1 + int(level[is_leaf].mean()),
        tree=tree[is_leaf],
        leaf=leaf[is_leaf],
    )


def _compact(column: Array, is_yes: Array, hop: Array, leaf: Array) -> Array:
    nodes = np.empty(len(hop), [("threshold", "<f4"), ("word", "<u4")])
    nodes["threshold"] = (0x7FC00000 | leaf).astype(np.uint32).view(np.float32)
    nodes["word"] = column | is_yes << 11 | (hop << 12).astype(np.uint32)
    return nodes


def _wide(column: Array, is_yes: Array, hop: Array, leaf: Array) -> Array:
    nodes = np.empty(len(hop), [("threshold", "<f8"), ("word", "<u4"), ("hops", "<i4")])
    nodes["threshold"] = (0x7FF8000000000000 | leaf).view(np.float64)
    nodes["word"] = column | is_yes << 31
    nodes["hops"] = hop
    return nodes


def _roots(tree: Array, level: Array, is_leaf: Array, *, has_jumps: bool) -> Array:
    start = np.flatnonzero(level == 0)
    deepest = np.maximum.reduceat(level, start) if len(start) else start
    leaves = np.maximum(np.bincount(tree, is_leaf), 1)
    mean = np.bincount(tree, level * is_leaf) / leaves
    most = np.where(deepest - mean < 2, deepest, mean.astype(np.int64))
    last = np.full_like(deepest, ENDLESS) if has_jumps else deepest
    return np.stack([start, most, last], axis=1).astype(np.int32)


_PACKINGS: Final = Memoized(_pack)


def _packing(forest: Forest) -> Packing:
    parts = (forest.feature, forest.threshold, forest.child, forest.nan_true, forest.roots)
    return _PACKINGS(*parts, forest.width)


@frozen
class _Said:
    """What leaves say: each one vote, each one for every target, or so many from `first` on."""

    first: Value | None
    target: Value | None
    weight: Value
    is_sure: bool  # every row gets votes for every target


def _said(votes: LeafVotes, n_targets: int, packing: Packing) -> _Said:
    weight = held(votes.weight)
    target = np.zeros_like(votes.target) if n_targets == 1 else votes.target
    if np.all(votes.count == n_targets) and not np.any(
        target.reshape(-1, n_targets) - np.arange(n_targets)
    ):
        return _Said(None, None, weight, True)
    short = held(target.astype(np.int32))
    if np.all(votes.count == 1):
        return _Said(None, short, weight, _is_sure(target[packing.leaf], n_targets, packing.tree))
    first = np.append(votes.first, votes.first[-1:] + votes.count[-1:]).astype(np.int32)
    return _Said(held(first), short, weight, False)


def _is_sure(target: Array, n_targets: int, tree: Array) -> bool:
    """Whether for each target there is a tree that votes for nothing else."""
    n_trees = int(tree.max(initial=-1)) + 1
    if n_trees * n_targets > MANY:
        return False
    table = np.bincount(tree * n_targets + target, minlength=n_trees * n_targets)
    leaves = np.bincount(tree, minlength=n_trees)
    return bool(np.all(np.any(table.reshape(n_trees, n_targets) == leaves[:, None], axis=0)))


def _call(x: Value, forest: Forest, aggregate: bytes, verdict: Verdict, ends: _Ends) -> Call | No:
    if not forest.n_trees:
        return No("a forest without trees has no kernel")
    packing = _packing(forest)
    said = _said(forest.votes, verdict.n_scores, packing)
    is_counting = aggregate in (b"MIN", b"MAX") or (ends.asks_votes and not said.is_sure)
    return Call(
        "trees_compact" if packing.is_compact else "trees_wide",
        (
            x,
            packing.nodes,
            packing.roots,
            said.first,
            said.target,
            said.weight,
            ends.base,
            ends.labels,
        ),
        (
            *verdict.ints,
            AGGREGATES.index(aggregate),
            forest.width,
            forest.n_trees,
            packing.steps,
            forest.nan_true is not None,
            is_counting,
        ),
    )


@frozen
class _Ends:
    base: Value  # one number for each score
    labels: Value | None = None
    asks_votes: bool = False  # a class without votes cannot win


def _base(given: Any, n_targets: int) -> Array:
    base = np.zeros(n_targets)
    if given is not None:
        base[: len(given)] = given
    return base


def _features(node: Node) -> Value:
    x = node.inputs[0]
    assert x is not None
    return x


def regressor(node: Node) -> Call | No:
    x, attrs = _features(node), node.attrs
    targets = target_count(attrs["n_targets"], attrs["target_ids"])
    forest = forest_by_ids("target", targets, x.tensor.dtype is F32, attrs)
    verdict = Verdict(VALUES, POSTS.index(attrs["post_transform"]), targets, targets)
    base = held(_base(numbers(attrs, "base_values"), targets))
    return _call(x, forest, attrs["aggregate_function"], verdict, _Ends(base))


def ensemble(node: Node) -> Call | No:
    x, attrs = _features(node), node.attrs
    if x.tensor.dtype is F16:
        return No("no kernel for f16")
    targets = target_count(attrs["n_targets"], attrs["leaf_targetids"])
    forest = forest_by_positions(targets, x.tensor.dtype is F32, attrs)
    verdict = Verdict(VALUES, attrs["post_transform"], targets, targets)
    aggregate = AGGREGATES[attrs["aggregate_function"]]
    return _call(x, forest, aggregate, verdict, _Ends(held(np.zeros(targets))))


def classifier(node: Node) -> Call | No:
    x, attrs = _features(node), node.attrs
    if node.outputs[0].tensor.dtype is STRING:
        return No("no kernel for labels that are strings")
    labels = labels_of(attrs["classlabels_int64s"], None)
    n, is_single = len(labels), x.tensor.dtype is F32
    forest = forest_by_ids("class", n, is_single, attrs)
    given, voters = numbers(attrs, "base_values"), forest.votes.voters
    base, post = _base(given, n), POSTS.index(attrs["post_transform"])
    n_base = 0 if given is None else len(given)
    if n > 2 or len(voters) > 1 or n_base > 1:
        verdict = Verdict(BEST, post, n, n, is_single)
        ends = _Ends(held(base), held(labels), asks_votes=n_base != n)
        return _call(x, forest, b"SUM", verdict, ends)
    column = int(voters[0]) if len(voters) else 0
    is_probable = n == 2 and forest.votes.probable
    verdict = Verdict(
        YES_NO,
        post,
        n_scores=1,
        n_columns=n,
        is_single=is_single,
        is_second=column == 1,
        is_complement=is_probable,
        is_probable=is_probable,
    )
    ends = _Ends(held(base[:1] if column == 0 else np.zeros(1)), labels_value(labels))
    return _call(x, forest, b"SUM", verdict, ends)


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (ML, "TreeEnsemble"): ensemble,
    (ML, "TreeEnsembleClassifier"): classifier,
    (ML, "TreeEnsembleRegressor"): regressor,
}

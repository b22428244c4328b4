"""Tree ensembles on the CPU: forests packed in breadth-first order, siblings adjacent.

native/kernels/trees/forest.h describes the nodes and how kernels traverse them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen, mutable
from sardonyx.graph.dtype import F16, F32, STRING
from sardonyx.graph.graph import Node, Value, input_of
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
from sardonyx.providers.cpu.index import Lowerings
from sardonyx.providers.cpu.scores import (
    ARGMAX,
    BINARY,
    NO_LABEL,
    POSTS,
    OutputRule,
    array_constant,
    labels_value,
)

FEATURES, HOP, LEAVES = 2**11, 2**19, 2**22  # limits of a compact node
MAX_CELLS: Final = 2**22  # elements of the table of votes, [trees, targets]
UNBOUNDED: Final = 2**31 - 1  # steps; the kernel stops at the first in which no traversal moves


@frozen
class PackedForest:
    """A forest in the layout of native/kernels/trees/forest.h."""

    nodes: Value
    roots: Value  # by tree: root node, steps to most leaves, and to all (forest.h: Root)
    is_compact: bool
    steps: int  # nodes on the path to a leaf, on average; an estimate of the work
    tree: Array  # by reachable leaf: its tree
    leaf: Array  # by reachable leaf: its number in the model


@mutable
class _Nodes:
    """Packed nodes under construction, level by level, as columns of a table."""

    ref: Array  # number of the branch in the model, or ~number of the leaf
    tree: Array  # that the node belongs to
    level: Array  # its depth
    link: Array  # of a branch the first child, else the node that is visited next
    tests: Array  # whether it is a branch that no earlier node stands for


def _breadth_first(child: Array, roots: Array) -> _Nodes:
    """Number the nodes breadth first; a branch that is reached again links to its first node.

    Such a node tests nothing: its threshold stays NaN, like that of a leaf.
    """
    seen = np.full(len(child) // 2 + 1, -1, np.int64)  # node of each branch; the last is unused
    ref, tree, base = roots.astype(np.int64), np.arange(len(roots)), 0
    columns: list[tuple[Array, ...]] = []
    while len(ref):
        ids = base + np.arange(len(ref))
        is_branch = ref >= 0
        unseen = np.flatnonzero(is_branch)
        unseen = unseen[seen[ref[unseen]] < 0][::-1]
        seen[ref[unseen]] = ids[unseen]  # in reverse: of equal branches the first one stays
        first = seen[np.maximum(ref, -1)]
        tests = is_branch & (first == ids)
        expanded = ref[tests]
        link = np.where(is_branch, first, ids)
        link[tests] = base + len(ref) + 2 * np.arange(len(expanded))
        columns.append((ref, tree, np.full(len(ref), len(columns)), link, tests))
        base += len(ref)
        ref = child.reshape(-1, 2)[expanded].reshape(-1).astype(np.int64)
        tree = tree[tests].repeat(2)
    return _Nodes(*map(np.concatenate, zip(*columns, strict=True)))


def _pack(
    feature: Array, threshold: Array, child: Array, nan_true: Array | None, roots: Array, width: int
) -> PackedForest:
    unsorted = _breadth_first(child, roots)
    # Trees one after the other; inside of a tree nodes stay breadth first.
    order = np.argsort(unsorted.tree, kind="stable")
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    ref, tree, level = unsorted.ref[order], unsorted.tree[order], unsorted.level[order]
    hop = position[unsorted.link[order]] - np.arange(len(order))
    is_leaf = ref < 0
    leaf = np.where(is_leaf, ~ref, 0)
    tests = unsorted.tests[order]
    is_compact = (
        threshold.dtype == np.float32
        and width <= FEATURES
        and int(leaf.max(initial=0)) < LEAVES
        and -HOP <= int(hop.min()) <= int(hop.max()) < HOP
    )
    branch = ref[tests]
    column = np.zeros(len(ref), np.uint32)
    column[tests] = feature[branch]
    is_nan_true = np.zeros(len(ref), np.uint32)
    is_nan_true[tests] = 0 if nan_true is None else nan_true[branch]
    nodes = (_compact if is_compact else _wide)(column, is_nan_true, hop, leaf)
    nodes["threshold"][tests] = threshold[branch]
    return PackedForest(
        nodes=array_constant(nodes.view(np.uint8)),
        roots=array_constant(
            _roots(tree, level, is_leaf, has_jumps=not np.array_equal(tests, ~is_leaf))
        ),
        is_compact=is_compact,
        steps=1 + int(level[is_leaf].mean()),
        tree=tree[is_leaf],
        leaf=leaf[is_leaf],
    )


# Thresholds of leaves are quiet NaNs with the number of the leaf as payload.


def _compact(column: Array, is_nan_true: Array, hop: Array, leaf: Array) -> Array:
    nodes = np.empty(len(hop), [("threshold", "<f4"), ("word", "<u4")])
    nodes["threshold"] = (0x7FC00000 | leaf).astype(np.uint32).view(np.float32)
    nodes["word"] = column | is_nan_true << 11 | (hop << 12).astype(np.uint32)
    return nodes


def _wide(column: Array, is_nan_true: Array, hop: Array, leaf: Array) -> Array:
    nodes = np.empty(len(hop), [("threshold", "<f8"), ("word", "<u4"), ("hops", "<i4")])
    nodes["threshold"] = (0x7FF8000000000000 | leaf).view(np.float64)
    nodes["word"] = column | is_nan_true << 31
    nodes["hops"] = hop
    return nodes


def _roots(tree: Array, level: Array, is_leaf: Array, *, has_jumps: bool) -> Array:
    start = np.flatnonzero(level == 0)
    deepest = np.maximum.reduceat(level, start) if len(start) else start
    leaves = np.maximum(np.bincount(tree, is_leaf), 1)
    mean = np.bincount(tree, level * is_leaf) / leaves
    # Skewed trees run unchecked only to their average depth; after that the kernel checks in each
    # step whether any traversal still moves.
    most = np.where(deepest - mean < 2, deepest, mean.astype(np.int64))
    # A jump to a shared branch is a step that depths do not count.
    last = np.full_like(deepest, UNBOUNDED) if has_jumps else deepest
    return np.stack([start, most, last], axis=1).astype(np.int32)


_PACKED: Final = Memoized(_pack)


def _packed(forest: Forest) -> PackedForest:
    arrays = (forest.feature, forest.threshold, forest.child, forest.nan_true, forest.roots)
    return _PACKED(*arrays, forest.width)


@frozen
class _Votes:
    """The votes of leaves: one each, one for every target each, or a list from `first` on."""

    first: Value | None
    target: Value | None
    weight: Value
    is_complete: bool  # every row gets votes for every target


def _votes(votes: LeafVotes, n_targets: int, packed: PackedForest) -> _Votes:
    weight = array_constant(votes.weight)
    target = np.zeros_like(votes.target) if n_targets == 1 else votes.target
    if np.all(votes.count == n_targets) and not np.any(
        target.reshape(-1, n_targets) - np.arange(n_targets)
    ):
        return _Votes(None, None, weight, True)
    targets = array_constant(target.astype(np.int32))
    if np.all(votes.count == 1):
        is_complete = _is_complete(target[packed.leaf], n_targets, packed.tree)
        return _Votes(None, targets, weight, is_complete)
    first = np.append(votes.first, votes.first[-1:] + votes.count[-1:]).astype(np.int32)
    return _Votes(array_constant(first), targets, weight, False)


def _is_complete(target: Array, n_targets: int, tree: Array) -> bool:
    """Whether for each target there is a tree that votes for nothing else."""
    n_trees = int(tree.max(initial=-1)) + 1
    if n_trees * n_targets > MAX_CELLS:
        return False
    table = np.bincount(tree * n_targets + target, minlength=n_trees * n_targets)
    leaves = np.bincount(tree, minlength=n_trees)
    return bool(np.all(np.any(table.reshape(n_trees, n_targets) == leaves[:, None], axis=0)))


def _call(  # noqa: PLR0913 - the operands of one kernel
    x: Value,
    forest: Forest,
    aggregate: bytes,
    rule: OutputRule,
    base: Array,
    labels: Value | None = None,
    needs_votes: bool = False,
) -> Call | No:
    """`base` has one number per score; with `needs_votes` a class without votes cannot win."""
    if not forest.n_trees:
        return No("no kernel for a forest without trees")
    packed = _packed(forest)
    votes = _votes(forest.votes, rule.n_scores, packed)
    # Targets without votes have no minimum or maximum, so votes are counted.
    is_counting = aggregate in (b"MIN", b"MAX") or (needs_votes and not votes.is_complete)
    leaves = (votes.first, votes.target, votes.weight)
    sizes = (forest.width, forest.n_trees, packed.steps)
    flags = (forest.nan_true is not None, is_counting)
    return Call(
        "trees_compact" if packed.is_compact else "trees_wide",
        (x, packed.nodes, packed.roots, *leaves, array_constant(base), labels),
        (*rule.ints, AGGREGATES.index(aggregate), *sizes, *flags),
    )


def _base(values: Any, n_targets: int) -> Array:
    base = np.zeros(n_targets)
    if values is not None:
        base[: len(values)] = values
    return base


def regressor(node: Node) -> Call | No:
    x, attrs = input_of(node, 0), node.attrs
    targets = target_count(attrs["n_targets"], attrs["target_ids"])
    forest = forest_by_ids("target", targets, x.tensor.dtype is F32, attrs)
    rule = OutputRule(NO_LABEL, POSTS.index(attrs["post_transform"]), targets, targets)
    base = _base(numbers(attrs, "base_values"), targets)
    return _call(x, forest, attrs["aggregate_function"], rule, base)


def ensemble(node: Node) -> Call | No:
    x, attrs = input_of(node, 0), node.attrs
    if x.tensor.dtype is F16:
        return No("no kernel for f16")
    targets = target_count(attrs["n_targets"], attrs["leaf_targetids"])
    forest = forest_by_positions(targets, x.tensor.dtype is F32, attrs)
    rule = OutputRule(NO_LABEL, attrs["post_transform"], targets, targets)
    return _call(x, forest, AGGREGATES[attrs["aggregate_function"]], rule, np.zeros(targets))


def classifier(node: Node) -> Call | No:
    x, attrs = input_of(node, 0), node.attrs
    if node.outputs[0].tensor.dtype is STRING:
        return No("no kernel for string labels")
    labels = labels_of(attrs["classlabels_int64s"], None)
    n, is_single = len(labels), x.tensor.dtype is F32
    forest = forest_by_ids("class", n, is_single, attrs)
    base_values, voters = numbers(attrs, "base_values"), forest.votes.voters
    base, post = _base(base_values, n), POSTS.index(attrs["post_transform"])
    n_base = 0 if base_values is None else len(base_values)
    if n > 2 or len(voters) > 1 or n_base > 1:
        rule = OutputRule(ARGMAX, post, n, n, is_single)
        return _call(x, forest, b"SUM", rule, base, array_constant(labels), needs_votes=n_base != n)
    # Binary: all leaves vote for one class, whose score decides.
    column = int(voters[0]) if len(voters) else 0
    is_probable = n == 2 and forest.votes.probable
    rule = OutputRule(BINARY, post, 1, n, is_single, column == 1, is_probable, is_probable)
    base = base[:1] if column == 0 else np.zeros(1)
    return _call(x, forest, b"SUM", rule, base, labels_value(labels))


LOWERINGS: Final[Lowerings] = {
    (ML, "TreeEnsemble"): ensemble,
    (ML, "TreeEnsembleClassifier"): classifier,
    (ML, "TreeEnsembleRegressor"): regressor,
}

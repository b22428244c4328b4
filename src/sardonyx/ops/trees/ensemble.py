"""Tree ensembles of ai.onnx.ml: random forests and boosted trees, regressors and classifiers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dtype import F32, IEEE
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import array, optional, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import (
    CLASS_INT64S,
    argmax_label,
    as_matrix,
    batch_sizes,
    binary_labels,
    binary_scores,
    check_transform,
    label_type,
    labels_of,
    ml_op,
    post_transformed,
)
from sardonyx.ops.inference import check_choice
from sardonyx.ops.memoize import Memoized
from sardonyx.ops.trees.attributes import (
    NODE_FIELDS,
    POSITION_FIELDS,
    VOTE_FIELDS,
    by_ids,
    by_positions,
    floats,
)
from sardonyx.ops.trees.forest import Forest

AGGREGATES: Final = (b"AVERAGE", b"SUM", b"MIN", b"MAX")
MAX_TARGETS: Final = 2**24  # more means an invalid model
POST: Final = (b"NONE", b"SOFTMAX", b"LOGISTIC", b"SOFTMAX_ZERO", b"PROBIT")

_NODES: Final = {
    **dict.fromkeys(("nodes_hitrates", "nodes_values", "base_values"), array("floats")),
    **dict.fromkeys(("nodes_falsenodeids", "nodes_truenodeids", "nodes_nodeids"), array("ints")),
    **dict.fromkeys(("nodes_treeids", "nodes_featureids"), array("ints")),
    "nodes_missing_value_tracks_true": array("ints"),
    "nodes_modes": array("strings"),
    "nodes_hitrates_as_tensor": optional("tensor"),
    "nodes_values_as_tensor": optional("tensor"),
    "base_values_as_tensor": optional("tensor"),
    "post_transform": b"NONE",
}


def _vote_attrs(kind: str) -> dict[str, Any]:
    return {
        **{f"{kind}_{name}": array("ints") for name in ("ids", "nodeids", "treeids")},
        f"{kind}_weights": array("floats"),
        f"{kind}_weights_as_tensor": optional("tensor"),
    }


_TARGETS: Final = {"n_targets": optional("int"), "aggregate_function": b"SUM"}
_REGRESSOR: Final = _NODES | _vote_attrs("target") | _TARGETS
_CLASSIFIER: Final = _NODES | _vote_attrs("class") | CLASS_INT64S
regressor = ml_op("TreeEnsembleRegressor", 3, "x:T", "y:S", attrs=_REGRESSOR)
classifier = ml_op("TreeEnsembleClassifier", 3, "x:T", "y:L z:S", attrs=_CLASSIFIER)
ensemble = ml_op(
    "TreeEnsemble",
    5,
    "x:T",
    "y:T",
    attrs={
        "aggregate_function": 1,
        **dict.fromkeys(("tree_roots", "leaf_targetids"), required("array ints")),
        **dict.fromkeys(("nodes_falseleafs", "nodes_trueleafs"), required("array ints")),
        **dict.fromkeys(("nodes_falsenodeids", "nodes_truenodeids"), required("array ints")),
        "nodes_featureids": required("array ints"),
        "nodes_missing_value_tracks_true": array("ints"),
        **dict.fromkeys(("leaf_weights", "nodes_modes", "nodes_splits"), required("tensor")),
        **dict.fromkeys(("membership_values", "nodes_hitrates"), optional("tensor")),
        "n_targets": optional("int"),
        "post_transform": 0,
    },
    types={"T": IEEE},
)


def numbers(attrs: dict[str, Any], name: str) -> Any:
    """Return a list of floats from the attribute `name` or from `name`_as_tensor."""
    tensor = attrs[f"{name}_as_tensor"]
    return attrs[name] if tensor is None else floats(tensor, f"{name}_as_tensor")


_FORESTS: Final = Memoized(by_ids)
_POSITIONED: Final = Memoized(by_positions)
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


def forest_by_ids(kind: str, n_targets: int, single: bool, attrs: dict[str, Any]) -> Forest:
    """Return the forest of an op with node ids; it compares in float32 where both sides are."""
    dtype = _SINGLE if single and attrs["nodes_values_as_tensor"] is None else _DOUBLE
    nodes = (attrs[f"nodes_{field}"] for field in NODE_FIELDS)
    votes = (attrs[f"{kind}_{field}"] for field in VOTE_FIELDS)
    return _FORESTS(dtype, kind, n_targets, *nodes, *votes)


def forest_by_positions(n_targets: int, single: bool, attrs: dict[str, Any]) -> Forest:
    """Return the forest of a TreeEnsemble; it compares like that of `forest_by_ids`."""
    dtype = _SINGLE if single and attrs["nodes_splits"].dtype is F32 else _DOUBLE
    return _POSITIONED(dtype, n_targets, *(attrs[field] for field in POSITION_FIELDS))


def _check_width(g: Scope, x: Fact, forest: Forest, what: str) -> Any:
    rows, width = batch_sizes(g, x, what)
    if x.shape is not None:
        message = f"{what} reads feature {forest.width - 1}, and rows are too short"
        g.at_least(width, forest.width, message)
    return rows


def _rows(x: Array, forest: Forest) -> Array:
    """Return the batch as a matrix, checked: inference may not have known its shape."""
    if x.ndim not in (1, 2):
        what = "rows of features, of rank 1 or 2"
        raise InvalidArgument(f"trees need {what}, not an array of shape {x.shape}")
    x = as_matrix(x)
    if x.shape[1] < forest.width:
        raise InvalidArgument(f"rows have {x.shape[1]} features, and the trees read {forest.width}")
    return x


def _check_base(attrs: dict[str, Any], what: str, *sizes: int) -> None:
    base = numbers(attrs, "base_values")
    if base is not None and len(base) not in (0, *sizes):
        expected = " or ".join(map(str, sizes))
        raise InvalidGraph(f"{what} has {len(base)} base_values, and needs {expected}")


def target_count(count: int | None, ids: Any) -> int:
    """Return the number of targets: the attribute's, or 1 + the largest target id."""
    if count is None:
        count = 1 if ids is None else 1 + int(ids.max(initial=0))
    if not 1 <= count <= MAX_TARGETS:
        raise InvalidGraph(f"n_targets is {count}, which is outside [1, {MAX_TARGETS}]")
    return count


@regressor.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    check_transform(attrs["post_transform"])
    check_choice("aggregate_function", attrs["aggregate_function"], AGGREGATES, InvalidGraph)
    targets = target_count(attrs["n_targets"], attrs["target_ids"])
    _check_base(attrs, "TreeEnsembleRegressor", targets)
    forest = forest_by_ids("target", targets, x.dtype is F32, attrs)
    return Fact(F32, (_check_width(g, x, forest, "TreeEnsembleRegressor"), targets))


@regressor.reference
def _(x: Array, **attrs: Any) -> Array:
    targets = target_count(attrs["n_targets"], attrs["target_ids"])
    forest = forest_by_ids("target", targets, x.dtype == np.float32, attrs)
    scores, _ = forest.scores(_rows(x, forest), targets, attrs["aggregate_function"])
    base = numbers(attrs, "base_values")
    if base is not None and len(base):
        scores = scores + base
    return post_transformed(scores, attrs["post_transform"])


@ensemble.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    for name, count in (("aggregate_function", 4), ("post_transform", 5)):
        if not 0 <= attrs[name] < count:
            raise InvalidGraph(f"{name} is {attrs[name]}, which is outside [0, {count})")
    targets = target_count(attrs["n_targets"], attrs["leaf_targetids"])
    forest = forest_by_positions(targets, x.dtype is F32, attrs)
    return Fact(x.dtype, (_check_width(g, x, forest, "TreeEnsemble"), targets))


@ensemble.reference
def _(x: Array, **attrs: Any) -> Array:
    targets = target_count(attrs["n_targets"], attrs["leaf_targetids"])
    forest = forest_by_positions(targets, x.dtype == np.float32, attrs)
    scores, _ = forest.scores(_rows(x, forest), targets, AGGREGATES[attrs["aggregate_function"]])
    post = POST[attrs["post_transform"]]
    return (scores if post == b"NONE" else post_transformed(scores, post)).astype(x.dtype)


@classifier.infer
def _(g: Scope, x: Fact, **attrs: Any) -> tuple[Fact, Fact]:
    what = "TreeEnsembleClassifier"
    check_transform(attrs["post_transform"])
    ints, strings = attrs["classlabels_int64s"], attrs["classlabels_strings"]
    dtype, classes = label_type(ints, strings, what)
    _check_base(attrs, what, *((1, 2) if classes == 2 else (classes,)))
    rows = _check_width(g, x, forest_by_ids("class", classes, x.dtype is F32, attrs), what)
    return Fact(dtype, (rows,)), Fact(F32, (rows, classes))


@classifier.reference
def _(x: Array, **attrs: Any) -> tuple[Array, Array]:
    labels = labels_of(attrs["classlabels_int64s"], attrs["classlabels_strings"])
    forest = forest_by_ids("class", len(labels), x.dtype == np.float32, attrs)
    rows = _rows(x, forest)
    scores, has_votes = forest.scores(rows, len(labels), b"SUM")
    base = numbers(attrs, "base_values")
    base = np.zeros(0) if base is None else base
    voters = forest.votes.voters
    post = attrs["post_transform"]
    if len(labels) <= 2 and len(voters) <= 1 and len(base) < 2:
        column = int(voters[0]) if len(voters) else 0
        score = scores[:, column] + (base.sum() if column == 0 else 0.0)
        return _binary_decision(score.astype(rows.dtype), column, forest, labels, post)
    scores[:, : len(base)] += base
    # A class without votes cannot win, unless base_values covers all classes.
    eligible = scores if len(base) == len(labels) else np.where(has_votes, scores, -np.inf)
    chosen = labels[argmax_label(eligible.astype(rows.dtype))]
    return chosen, post_transformed(scores.astype(rows.dtype), post)


def _binary_decision(
    score: Array, column: int, forest: Forest, labels: Array, post: bytes
) -> tuple[Array, Array]:
    """Decide between two classes by one score: probabilities at 0.5, decision values at 0.

    As in onnxruntime, scores are probabilities if no weight is negative.
    """
    probable = len(labels) == 2 and forest.votes.probable
    chosen = binary_labels(labels)[(score > (0.5 if probable else 0)).astype(np.intp)]
    if len(labels) == 1:
        return chosen, post_transformed(score[:, None], post)
    if column == 1:
        return chosen, post_transformed(np.stack([np.zeros_like(score), score], axis=1), post)
    return chosen, binary_scores(score, post, complement=probable)


OPS: Final = (ensemble, classifier, regressor)

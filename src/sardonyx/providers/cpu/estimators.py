"""Linear models and support vector machines (SVM) on the CPU."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import F32, STRING
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import ML
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.linear_svm import KERNELS, SvmKernel, classifier_targets
from sardonyx.ops.estimators.scores import labels_of
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

_MIN_COLUMNS: Final = 3  # scores, from which lanes of scores are faster than dot products
_PADDED: Final = 16  # scores of the native kernel are padded to a multiple
_BY_COLUMNS: Final = tuple(POSTS.index(post) for post in (b"NONE", b"SOFTMAX", b"LOGISTIC"))


def _linear(x: Value, attrs: dict[str, Any], rule: OutputRule, labels: Value | None) -> Call | No:
    """Call a linear model; it computes in float64 unless the features are float32."""
    is_single = x.tensor.dtype is F32
    kind = np.float32 if is_single else np.float64
    weights, intercepts, n = attrs["coefficients"], attrs["intercepts"], rule.n_scores
    if intercepts is None:
        intercepts = np.zeros(max(n, 0))
    if n < 1 or weights is None or weights.size % n or intercepts.size != n:
        return No("coefficients or intercepts do not fit the scores")
    weights = weights.astype(kind).reshape(n, -1)
    if is_single and n >= _MIN_COLUMNS and rule.label_rule != BINARY and rule.post in _BY_COLUMNS:
        padding = (0, -n % _PADDED)
        operands = (
            array_constant(np.ascontiguousarray(np.pad(weights, (padding, (0, 0))).T)),
            array_constant(np.pad(intercepts.astype(kind), padding)),
            labels,
        )
        return Call("linear_columns_f32", (x, *operands), rule.ints)
    operands = array_constant(weights), array_constant(intercepts.astype(kind)), labels
    return Call("linear_f32" if is_single else "linear_f64", (x, *operands), rule.ints)


def linear_regressor(node: Node) -> Call | No:
    x, n = input_of(node, 0), node.attrs["targets"]
    rule = OutputRule(NO_LABEL, POSTS.index(node.attrs["post_transform"]), n, n)
    return _linear(x, node.attrs, rule, None)


def linear_classifier(node: Node) -> Call | No:
    x, attrs = input_of(node, 0), node.attrs
    if node.outputs[0].tensor.dtype is STRING:
        return No("no kernel for string labels")
    width = x.tensor.dims[-1]
    if attrs["intercepts"] is None and not isinstance(width, int):
        return No("the number of scores depends on a width that is not known")
    labels = labels_of(attrs["classlabels_ints"], None)
    n, is_single = len(labels), x.tensor.dtype is F32
    # A binary model may have one score for two labels: its sign decides.
    targets = classifier_targets(attrs["coefficients"], attrs["intercepts"], width, n)
    post = POSTS.index(attrs["post_transform"])
    if targets > 1:
        return _linear(x, attrs, OutputRule(ARGMAX, post, n, n, is_single), array_constant(labels))
    rule = OutputRule(BINARY, post, 1, n, is_single, is_complement=True)
    return _linear(x, attrs, rule, labels_value(labels))


def _linear_svm(
    x: Value, attrs: dict[str, Any], rule: OutputRule, labels: Value | None
) -> Call | No:
    """Call an SVM without support vectors: a linear model with one intercept for all scores."""
    intercepts = np.full(rule.n_scores, _rho(attrs), np.float32)
    return _linear(x, {**attrs, "intercepts": intercepts}, rule, labels)


def _rho(attrs: dict[str, Any]) -> float:
    rho = attrs["rho"]
    return 0.0 if rho is None or not len(rho) else float(rho[0])


@frozen
class _Classes:
    """The classes of an SVM classifier."""

    sizes: Array  # support vectors, by class
    labels: Array


def _svm(  # noqa: PLR0913 - the operands of one kernel
    x: Value,
    attrs: dict[str, Any],
    count: int,
    weights: Array,
    rho: Array,
    rule: OutputRule,
    classes: _Classes | None = None,
) -> Call:
    kernel = SvmKernel(
        attrs["support_vectors"], count, attrs["kernel_type"], attrs["kernel_params"]
    )
    # Coefficients of the sigmoids that turn decisions of class pairs into probabilities.
    sigmoids = (attrs.get("prob_a"), attrs.get("prob_b"))
    is_probable = sigmoids[0] is not None and len(sigmoids[0]) > 0
    vectors = np.ascontiguousarray(kernel.vectors.T)  # lanes of the kernel are support vectors
    inputs = (
        *(x, array_constant(vectors), array_constant(kernel.squares)),
        *(array_constant(weights.astype(np.float64)), array_constant(rho.astype(np.float64))),
        None if classes is None else array_constant(classes.sizes.astype(np.int64)),
        None if classes is None else array_constant(classes.labels),
        *(array_constant(np.asarray(c, np.float32)) if is_probable else None for c in sigmoids),
    )
    ints = (
        *(*rule.ints, KERNELS.index(attrs["kernel_type"])),
        *(0 if classes is None else len(classes.labels), attrs.get("one_class", 0) != 0),
        is_probable,
    )
    return Call("svm", inputs, ints, (kernel.gamma, kernel.shift, kernel.degree))


def svm_regressor(node: Node) -> Call | No:
    x, attrs = input_of(node, 0), node.attrs
    rule = OutputRule(NO_LABEL, 0, 1, 1)
    if attrs["coefficients"] is None:
        return No("no kernel for an SVM without coefficients")
    if not attrs["n_supports"]:
        if attrs["one_class"]:
            return No("no kernel for one class without support vectors")
        return _linear_svm(x, attrs, rule, None)
    rho = np.array([_rho(attrs)])  # a regressor has a single decision function
    if attrs["kernel_type"] == b"LINEAR" and not attrs["one_class"]:
        # The sum of weighted dot products is that with the sum of the weighted vectors.
        kernel = SvmKernel(attrs["support_vectors"], attrs["n_supports"], b"LINEAR", None)
        weights = attrs["coefficients"].astype(np.float64) @ kernel.vectors
        operands = (array_constant(weights.reshape(1, -1)), array_constant(rho), None)
        return Call("linear_f64", (x, *operands), rule.ints)
    return _svm(x, attrs, attrs["n_supports"], attrs["coefficients"], rho, rule)


def svm_classifier(node: Node) -> Call | No:
    x, attrs = input_of(node, 0), node.attrs
    if node.outputs[0].tensor.dtype is STRING:
        return No("no kernel for string labels")
    labels = labels_of(attrs["classlabels_ints"], None)
    n, sizes, post = len(labels), attrs["vectors_per_class"], POSTS.index(attrs["post_transform"])
    count = 0 if sizes is None else int(sizes.sum())
    if not count:
        is_binary = n == 1  # with a negative class that has no label
        rule = OutputRule(BINARY if is_binary else ARGMAX, post, n, n, x.tensor.dtype is F32)
        return _linear_svm(
            x, attrs, rule, labels_value(labels) if is_binary else array_constant(labels)
        )
    if n < 2:
        return No("no kernel for a single class")
    # Pairwise probabilities, one decision, or a decision per pair.
    if attrs["prob_a"] is not None and len(attrs["prob_a"]):
        rule = OutputRule(NO_LABEL, post, n, n)
    elif n == 2:
        rule = OutputRule(BINARY, post, 1, 2, is_complement=post != 0)
    else:
        # One score per pair of classes; the kernel finds the label by their votes.
        rule = OutputRule(NO_LABEL, post, n * (n - 1) // 2, n * (n - 1) // 2)
    weights = attrs["coefficients"][: (n - 1) * count]
    return _svm(x, attrs, count, weights, attrs["rho"], rule, _Classes(sizes, labels))


LOWERINGS: Final[Lowerings] = {
    (ML, "LinearClassifier"): linear_classifier,
    (ML, "LinearRegressor"): linear_regressor,
    (ML, "SVMClassifier"): svm_classifier,
    (ML, "SVMRegressor"): svm_regressor,
}

"""Linear models and support vector machines on the CPU."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, STRING
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import ML
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.linear_svm import KERNELS, SvmKernel, classifier_targets
from sardonyx.ops.estimators.scores import labels_of
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.scores import BEST, POSTS, VALUES, YES_NO, Verdict, held, labels_value


def _features(node: Node) -> Value:
    x = node.inputs[0]
    assert x is not None
    return x


def _linear(x: Value, attrs: dict[str, Any], verdict: Verdict, labels: Value | None) -> Call | No:
    """A row of weights and an intercept per score, in float64 where features are not float32."""
    is_single = x.tensor.dtype is F32
    kind = np.float32 if is_single else np.float64
    given, shifts, n = attrs["coefficients"], attrs["intercepts"], verdict.n_scores
    if n < 1 or given is None or given.size % n or (shifts is not None and shifts.size != n):
        return No("coefficients or intercepts do not fit the scores")
    intercepts = np.zeros(n, kind) if shifts is None else shifts.astype(kind)
    weights = given.astype(kind).reshape(n, -1)
    row = "linear_f32" if is_single else "linear_f64"
    return Call(row, (x, held(weights), held(intercepts), labels), verdict.ints)


def linear_regressor(node: Node) -> Call | No:
    x, n = _features(node), node.attrs["targets"]
    verdict = Verdict(VALUES, POSTS.index(node.attrs["post_transform"]), n, n)
    return _linear(x, node.attrs, verdict, None)


def linear_classifier(node: Node) -> Call | No:
    x, attrs = _features(node), node.attrs
    if node.outputs[0].tensor.dtype is STRING:
        return No("no kernel for labels that are strings")
    width: Size = x.tensor.dims[-1]
    if attrs["intercepts"] is None and not isinstance(width, int):
        return No("how many scores a row has follows from a width that is not known")
    labels = labels_of(attrs["classlabels_ints"], None)
    n, is_single = len(labels), x.tensor.dtype is F32
    targets = classifier_targets(attrs["coefficients"], attrs["intercepts"], width, n)
    post = POSTS.index(attrs["post_transform"])
    if targets > 1:
        return _linear(x, attrs, Verdict(BEST, post, n, n, is_single), held(labels))
    verdict = Verdict(YES_NO, post, 1, n, is_single, is_complement=True)
    return _linear(x, attrs, verdict, labels_value(labels))


def _linear_machine(
    x: Value, attrs: dict[str, Any], verdict: Verdict, labels: Value | None
) -> Call | No:
    """A machine without support vectors: one row of weights per score, and one shift for all."""
    shift = np.full(verdict.n_scores, _shift(attrs["rho"]), np.float32)
    return _linear(x, {**attrs, "intercepts": shift}, verdict, labels)


def _shift(rho: Any) -> float:
    return 0.0 if rho is None or not len(rho) else float(rho[0])


def _machine(  # noqa: PLR0913 - the operands of one row
    x: Value,
    attrs: dict[str, Any],
    count: int,
    weights: Array,
    rho: Array,
    sizes: Array | None,
    labels: Array | None,
    verdict: Verdict,
) -> Call:
    kernel = SvmKernel(
        attrs["support_vectors"], count, attrs["kernel_type"], attrs["kernel_params"]
    )
    chances = (attrs.get("prob_a"), attrs.get("prob_b"))
    is_probable = chances[0] is not None and len(chances[0]) > 0
    return Call(
        "svm",
        (
            x,
            held(kernel.vectors),
            held(kernel.squares),
            held(weights.astype(np.float64)),
            held(rho.astype(np.float64)),
            None if sizes is None else held(sizes.astype(np.int64)),
            None if labels is None else held(labels),
            *(held(np.asarray(c, np.float32)) if is_probable else None for c in chances),
        ),
        (
            *verdict.ints,
            KERNELS.index(attrs["kernel_type"]),
            0 if labels is None else len(labels),
            attrs.get("one_class", 0) != 0,
            is_probable,
        ),
        (kernel.gamma, kernel.shift, kernel.degree),
    )


def svm_regressor(node: Node) -> Call | No:
    x, attrs = _features(node), node.attrs
    verdict = Verdict(VALUES, 0, 1, 1)
    if attrs["coefficients"] is None:
        return No("a machine without coefficients has no kernel")
    if not attrs["n_supports"]:
        if attrs["one_class"]:
            return No("no kernel for one class without support vectors")
        return _linear_machine(x, attrs, verdict, None)
    rho = np.array([_shift(attrs["rho"])])
    weights = attrs["coefficients"]
    return _machine(x, attrs, attrs["n_supports"], weights, rho, None, None, verdict)


def svm_classifier(node: Node) -> Call | No:
    x, attrs = _features(node), node.attrs
    if node.outputs[0].tensor.dtype is STRING:
        return No("no kernel for labels that are strings")
    labels = labels_of(attrs["classlabels_ints"], None)
    n, sizes, post = len(labels), attrs["vectors_per_class"], POSTS.index(attrs["post_transform"])
    count = 0 if sizes is None else int(sizes.sum())
    if not count:
        is_single, is_alone = x.tensor.dtype is F32, n == 1
        verdict = Verdict(YES_NO if is_alone else BEST, post, n, n, is_single)
        return _linear_machine(
            x, attrs, verdict, labels_value(labels) if is_alone else held(labels)
        )
    if n < 2:
        return No("one class has no pair")
    if attrs["prob_a"] is not None and len(attrs["prob_a"]):
        verdict = Verdict(VALUES, post, n, n)
    elif n == 2:
        verdict = Verdict(YES_NO, post, 1, 2, is_complement=post != 0)
    else:
        verdict = Verdict(VALUES, post, n * (n - 1) // 2, n * (n - 1) // 2)
    weights = attrs["coefficients"][: (n - 1) * count]
    return _machine(x, attrs, count, weights, attrs["rho"], sizes, labels, verdict)


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (ML, "LinearClassifier"): linear_classifier,
    (ML, "LinearRegressor"): linear_regressor,
    (ML, "SVMClassifier"): svm_classifier,
    (ML, "SVMRegressor"): svm_regressor,
}

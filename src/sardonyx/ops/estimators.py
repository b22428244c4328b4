"""Linear models and support vector machines."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops.declare import ML, Op, array, required
from sardonyx.ops.rules import Array
from sardonyx.ops.scores import (
    FEATURES,
    LABELS,
    SCORES,
    as_rows,
    check_transform,
    label_count,
    label_type,
    labels_of,
    logistic,
    pair,
    rows_of,
    top,
    transformed,
    two_labels,
)

_EMPTY: Final = np.zeros(0, np.float32)


def _list(values: Any) -> Array:
    return _EMPTY if values is None else values


# Linear models


linear_regressor = Op(
    "LinearRegressor",
    1,
    "x:T",
    "y:S",
    domain=ML,
    attrs={
        "coefficients": array(),
        "intercepts": array(),
        "targets": 1,
        "post_transform": b"NONE",
    },
    types={"T": FEATURES, "S": SCORES},
    unranked=True,
)
linear_classifier = Op(
    "LinearClassifier",
    1,
    "x:T",
    "y:L z:S",
    domain=ML,
    attrs={
        "coefficients": required("array floats"),
        "intercepts": array(),
        "classlabels_ints": array("ints"),
        "classlabels_strings": array("strings"),
        "multi_class": 0,
        "post_transform": b"NONE",
    },
    types={"T": FEATURES, "L": LABELS, "S": SCORES},
    unranked=True,
)


def _linear(x: Array, coefficients: Any, intercepts: Any, targets: int) -> Array:
    """One dot product per row and target."""
    rows = as_rows(x)
    weights = _list(coefficients).astype(rows.dtype)
    if weights.size != targets * rows.shape[1]:
        raise InvalidGraph(
            f"there are {weights.size} coefficients for {targets} targets of {rows.shape[1]} features each"
        )
    result = rows @ weights.reshape(targets, -1).T
    return result if intercepts is None else result + intercepts.astype(rows.dtype)


def _check_coefficients(g: Scope, coefficients: Any, targets: int, width: Size) -> None:
    size = len(_list(coefficients))
    g.equal(
        width * targets, size, f"coefficients are one per feature and target ({targets} targets)"
    )


@linear_regressor.infer
def _(
    g: Scope, x: Fact, *, coefficients: Any, intercepts: Any, targets: int, post_transform: bytes
) -> Fact:
    check_transform(post_transform)
    if targets < 1:
        raise InvalidGraph(f"LinearRegressor has {targets} targets, and needs at least 1")
    if intercepts is not None and len(intercepts) != targets:
        raise InvalidGraph(
            f"LinearRegressor has {len(intercepts)} intercepts for {targets} targets"
        )
    rows, width = rows_of(g, x, "LinearRegressor")
    if x.shape is not None:
        _check_coefficients(g, coefficients, targets, width)
    return Fact(F32, (rows, targets))


@linear_regressor.reference
def _(
    x: Array, *, coefficients: Any, intercepts: Any, targets: int, post_transform: bytes
) -> Array:
    return transformed(_linear(x, coefficients, intercepts, targets), post_transform)


def _classifier_targets(coefficients: Any, intercepts: Any, width: Size, labels: int) -> int:
    """One score per label, or a single one that decides between two."""
    size = len(coefficients)
    targets = labels if intercepts is None else len(intercepts)
    if intercepts is None and labels == 2 and width == size:
        targets = 1
    if targets != labels and (targets, labels) != (1, 2):
        raise InvalidGraph(f"LinearClassifier has {targets} intercepts for {labels} class labels")
    return targets


@linear_classifier.infer
def _(g: Scope, x: Fact, **attrs: Any) -> tuple[Fact, Fact]:
    check_transform(attrs["post_transform"])
    ints, strings = attrs["classlabels_ints"], attrs["classlabels_strings"]
    dtype, labels = label_type(ints, strings, "LinearClassifier"), label_count(ints, strings)
    rows, width = rows_of(g, x, "LinearClassifier")
    coefficients, intercepts = attrs["coefficients"], attrs["intercepts"]
    targets = _classifier_targets(coefficients, intercepts, width, labels)
    if x.shape is not None and (intercepts is not None or isinstance(width, int)):
        _check_coefficients(g, coefficients, targets, width)
    return Fact(dtype, (rows,)), Fact(F32, (rows, labels))


@linear_classifier.reference
def _(x: Array, **attrs: Any) -> tuple[Array, Array]:
    labels = labels_of(attrs["classlabels_ints"], attrs["classlabels_strings"])
    coefficients, intercepts = attrs["coefficients"], attrs["intercepts"]
    targets = _classifier_targets(coefficients, intercepts, x.shape[-1], len(labels))
    scores, post = _linear(x, coefficients, intercepts, targets), attrs["post_transform"]
    if targets > 1:
        return labels[top(scores)], transformed(scores, post)
    chosen = two_labels(labels)[(scores[:, 0] > 0).astype(np.intp)]
    if len(labels) == 1:
        return chosen, transformed(scores, post)
    return chosen, pair(scores[:, 0], post, complement=True)


# Support vector machines

_KERNEL: Final = {"kernel_type": b"LINEAR", "kernel_params": array()}
KERNELS: Final = (b"LINEAR", b"POLY", b"RBF", b"SIGMOID")

svm_regressor = Op(
    "SVMRegressor",
    1,
    "x:T",
    "y:S",
    domain=ML,
    attrs={
        **_KERNEL,
        "coefficients": array(),
        "n_supports": 0,
        "one_class": 0,
        "post_transform": b"NONE",
        "rho": array(),
        "support_vectors": array(),
    },
    types={"T": FEATURES, "S": SCORES},
    unranked=True,
)
svm_classifier = Op(
    "SVMClassifier",
    1,
    "x:T",
    "y:L z:S",
    domain=ML,
    attrs={
        **_KERNEL,
        "classlabels_ints": array("ints"),
        "classlabels_strings": array("strings"),
        "coefficients": array(),
        "post_transform": b"NONE",
        "prob_a": array(),
        "prob_b": array(),
        "rho": array(),
        "support_vectors": array(),
        "vectors_per_class": array("ints"),
    },
    types={"T": FEATURES, "L": LABELS, "S": SCORES},
    unranked=True,
)


def _kernel(rows: Array, vectors: Array, kind: bytes, params: Any) -> Array:
    """How alike each row and each support vector are."""
    gamma, shift, degree = (float(p) for p in (params if params is not None else (0, 0, 0)))
    if kind == b"RBF":
        return _radial(rows, vectors, gamma)
    dots = rows @ vectors.astype(rows.dtype).T
    if kind == b"POLY":
        return (gamma * dots + shift) ** degree
    return np.tanh(gamma * dots + shift) if kind == b"SIGMOID" else dots


def _radial(rows: Array, vectors: Array, gamma: float) -> Array:
    """exp(-gamma |row - vector|^2); in float64, since the squares cancel."""
    a, b = rows.astype(np.float64), vectors.astype(np.float64)
    square = (a * a).sum(1)[:, None] - 2 * (a @ b.T) + (b * b).sum(1)
    return np.exp(-gamma * np.maximum(square, 0))


def _check_kernel(kind: bytes, params: Any) -> None:
    if kind not in KERNELS:
        known = ", ".join(k.decode() for k in KERNELS)
        raise InvalidGraph(f"kernel_type is {kind.decode(errors='replace')}, and may be {known}")
    if params is not None and len(params) != 3:
        raise InvalidGraph(
            f"kernel_params are gamma, coef0 and degree, and {len(params)} are given"
        )


def _vector_width(vectors: Any, count: int, what: str) -> int:
    size = len(_list(vectors))
    if size % count:
        raise InvalidGraph(f"{what} has {size} numbers, which are not {count} rows of equal length")
    return size // count


@svm_regressor.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    check_transform(attrs["post_transform"])
    _check_kernel(attrs["kernel_type"], attrs["kernel_params"])
    count, size = attrs["n_supports"], len(_list(attrs["coefficients"]))
    if count < 0 or (count and size != count):
        raise InvalidGraph(f"SVMRegressor has {size} coefficients for {count} support vectors")
    features = _vector_width(attrs["support_vectors"], count, "support_vectors") if count else size
    rows, width = rows_of(g, x, "SVMRegressor")
    if x.shape is not None:
        g.equal(width, features, "features of the rows and of the SVMRegressor differ")
    return Fact(F32, (rows, 1))


@svm_regressor.reference
def _(x: Array, **attrs: Any) -> Array:
    rows = as_rows(x)
    weights, count = _list(attrs["coefficients"]).astype(rows.dtype), attrs["n_supports"]
    with np.errstate(all="ignore"):
        if count:
            vectors = attrs["support_vectors"].reshape(count, -1)
            rows = _kernel(rows, vectors, attrs["kernel_type"], attrs["kernel_params"])
        result = rows @ weights + (attrs["rho"][0] if len(_list(attrs["rho"])) else 0)
    if attrs["one_class"]:
        result = np.where(result > 0, 1, -1)
    return result.astype(np.float32).reshape(-1, 1)  # onnxruntime never transforms this score


def _check_machine(attrs: dict[str, Any], labels: int) -> int:
    """The features that a row must have; the sizes of all attributes are checked."""
    count = int(_list(attrs["vectors_per_class"]).sum())
    size = len(_list(attrs["coefficients"]))
    if not count:
        return _vector_width(attrs["coefficients"], labels, "coefficients")
    pairs = labels * (labels - 1) // 2
    wanted = {
        "vectors_per_class": labels, "coefficients": (labels - 1) * count, "rho": pairs
    }  # fmt: skip
    if attrs["prob_a"] is not None or attrs["prob_b"] is not None:
        wanted |= {"prob_a": pairs, "prob_b": pairs}
    for name, length in wanted.items():
        given = size if name == "coefficients" else len(_list(attrs[name]))
        if given < length:
            raise InvalidGraph(
                f"SVMClassifier of {labels} classes has {given} {name}, and needs {length}"
            )
    if attrs["vectors_per_class"].min() < 0:
        raise InvalidGraph(f"vectors_per_class has {attrs['vectors_per_class'].min()}")
    return _vector_width(attrs["support_vectors"], count, "support_vectors")


def _score_count(attrs: dict[str, Any], labels: int) -> int:
    """One score per class, or one per pair of classes where these are neither two nor probabilities."""
    pairwise = int(_list(attrs["vectors_per_class"]).sum()) > 0 and not len(_list(attrs["prob_a"]))
    return labels * (labels - 1) // 2 if pairwise and labels > 2 else labels


@svm_classifier.infer
def _(g: Scope, x: Fact, **attrs: Any) -> tuple[Fact, Fact]:
    check_transform(attrs["post_transform"])
    _check_kernel(attrs["kernel_type"], attrs["kernel_params"])
    ints, strings = attrs["classlabels_ints"], attrs["classlabels_strings"]
    dtype, labels = label_type(ints, strings, "SVMClassifier"), label_count(ints, strings)
    features = _check_machine(attrs, labels)
    rows, width = rows_of(g, x, "SVMClassifier")
    if x.shape is not None:
        g.equal(width, features, "features of the rows and of the SVMClassifier differ")
    return Fact(dtype, (rows,)), Fact(F32, (rows, _score_count(attrs, labels)))


@svm_classifier.reference
def _(x: Array, **attrs: Any) -> tuple[Array, Array]:
    labels = labels_of(attrs["classlabels_ints"], attrs["classlabels_strings"])
    rows, post = as_rows(x), attrs["post_transform"]
    if not _list(attrs["vectors_per_class"]).sum():
        weights = attrs["coefficients"].astype(rows.dtype).reshape(len(labels), -1)
        scores = rows @ weights.T + (attrs["rho"][0] if len(_list(attrs["rho"])) else 0)
        chosen = top(scores) if len(labels) > 1 else (scores[:, 0] > 0).astype(np.intp)
        named = labels if len(labels) > 1 else two_labels(labels)
        return named[chosen], transformed(scores, post)
    with np.errstate(all="ignore"):
        scores, first, second = _duels(rows, len(labels), attrs)
    wins = np.zeros((len(rows), len(labels)), np.int64)
    for p, (i, j) in enumerate(zip(first, second, strict=True)):
        won = scores[:, p] > 0
        wins[:, i] += won
        wins[:, j] += ~won
    chosen = labels[np.argmax(wins, axis=1)]  # by duels, even where probabilities say otherwise
    if len(_list(attrs["prob_a"])):
        return chosen, transformed(_chances(scores, first, second, len(labels), attrs), post)
    if len(labels) == 2:
        return chosen, pair(scores[:, 0], post, complement=post != b"NONE")
    return chosen, transformed(scores, post)


def _duels(rows: Array, n: int, attrs: dict[str, Any]) -> tuple[Array, Array, Array]:
    """The decision value of each pair of classes, and the two classes of each pair.

    The coefficients are a matrix with a row per opponent and a column per support vector: against class j, the
    vectors of class i use row j - 1 if j is above i, and row j if it is below.
    """
    sizes = attrs["vectors_per_class"][:n]
    count = int(sizes.sum())
    alike = _kernel(
        rows,
        attrs["support_vectors"].reshape(count, -1),
        attrs["kernel_type"],
        attrs["kernel_params"],
    ).astype(np.float64)
    weights = attrs["coefficients"][: (n - 1) * count].reshape(n - 1, count).astype(np.float64)
    ends = np.cumsum(sizes)
    share = [
        alike[:, e - s : e] @ weights[:, e - s : e].T for s, e in zip(sizes, ends, strict=True)
    ]
    first, second = np.triu_indices(n, 1)
    columns = [share[i][:, j - 1] + share[j][:, i] for i, j in zip(first, second, strict=True)]
    scores = np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0))
    return scores + attrs["rho"][: len(first)], first, second


def _chances(scores: Array, first: Array, second: Array, n: int, attrs: dict[str, Any]) -> Array:
    """Class probabilities from the decision values of pairs (Platt scaling, then pairwise coupling)."""
    pairs = scores.shape[1]
    beats = 1 - logistic(scores * attrs["prob_a"][:pairs] + attrs["prob_b"][:pairs])
    beats = np.clip(beats, 1e-7, 1 - 1e-7)
    r = np.zeros((len(scores), n, n))
    r[:, first, second] = beats
    r[:, second, first] = 1 - beats
    return _couple(r)


def _couple(r: Array) -> Array:
    """The probabilities p that fit all pairs best: minimise the sum of (r_ji p_i - r_ij p_j)^2.

    Wu, Lin and Weng's second method: one class after the other is set to its optimum, for all rows at once.
    """
    count, n = r.shape[:2]
    q = -r * r.transpose(0, 2, 1)
    q[:, range(n), range(n)] = (r * r).sum(axis=1)
    p = np.full((count, n), 1.0 / n)
    live = np.arange(count)
    for _ in range(max(100, n)):
        qp = np.einsum("rij,rj->ri", q[live], p[live])
        energy = (p[live] * qp).sum(axis=1)
        open_ = np.abs(qp - energy[:, None]).max(axis=1) >= 0.005 / n
        live, qp, energy = live[open_], qp[open_], energy[open_]
        if not live.size:
            break
        for t in range(n):
            own = q[live, t, t]
            step = (energy - qp[:, t]) / own
            energy = (energy + step * (step * own + 2 * qp[:, t])) / (1 + step) ** 2
            qp = (qp + step[:, None] * q[live, t]) / (1 + step)[:, None]
            p[live, t] += step
            p[live] /= (1 + step)[:, None]
    return p


OPS: Final = (linear_classifier, linear_regressor, svm_classifier, svm_regressor)

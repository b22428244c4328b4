"""Linear models and support vector machines of ai.onnx.ml."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import array, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import (
    CLASS_INTS,
    argmax_label,
    as_matrix,
    batch_sizes,
    binary_labels,
    binary_scores,
    check_transform,
    label_type,
    labels_of,
    logistic,
    ml_op,
    post_transformed,
)
from sardonyx.ops.inference import check_choice
from sardonyx.ops.memoize import Memoized

_EMPTY: Final = np.zeros(0, np.float32)


def _list(values: Any) -> Array:
    return _EMPTY if values is None else values


# Linear models


linear_regressor = ml_op(
    "LinearRegressor",
    1,
    "x:T",
    "y:S",
    attrs={"coefficients": array(), "intercepts": array(), "targets": 1, "post_transform": b"NONE"},
)
linear_classifier = ml_op(
    "LinearClassifier",
    1,
    "x:T",
    "y:L z:S",
    attrs={
        **CLASS_INTS,
        "coefficients": required("array floats"),
        "intercepts": array(),
        "multi_class": 0,
        "post_transform": b"NONE",
    },
)


def _linear(x: Array, coefficients: Any, intercepts: Any, targets: int) -> Array:
    """Return one dot product per row and target."""
    rows = as_matrix(x)
    weights = _list(coefficients).astype(rows.dtype)
    if weights.size != targets * rows.shape[1]:
        expected = f"{targets} targets of {rows.shape[1]} features each"
        raise InvalidGraph(f"{expected} have {weights.size} coefficients")
    with np.errstate(all="ignore"):
        result: Array = rows @ weights.reshape(targets, -1).T
        return result if intercepts is None else np.add(result, intercepts.astype(rows.dtype))


def _check_coefficients(g: Scope, coefficients: Any, targets: int, width: Size) -> None:
    what = f"coefficients are one per feature and target ({targets} targets)"
    g.equal(width * targets, len(_list(coefficients)), what)


@linear_regressor.infer
def _(g: Scope, x: Fact, *, coefficients: Any, intercepts: Any, targets: int, **attrs: Any) -> Fact:
    check_transform(attrs["post_transform"])
    if targets < 1:
        raise InvalidGraph(f"LinearRegressor has {targets} targets, and needs at least 1")
    count = targets if intercepts is None else len(intercepts)
    if count != targets:
        raise InvalidGraph(f"LinearRegressor has {count} intercepts for {targets} targets")
    rows, width = batch_sizes(g, x, "LinearRegressor")
    if x.shape is not None:
        _check_coefficients(g, coefficients, targets, width)
    return Fact(F32, (rows, targets))


@linear_regressor.reference
def _(x: Array, *, post_transform: bytes, **weights: Any) -> Array:
    return post_transformed(_linear(x, **weights), post_transform)


def classifier_targets(coefficients: Any, intercepts: Any, width: Size, labels: int) -> int:
    """Return the number of scores: one per label, or one for a binary classifier."""
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
    dtype, labels = label_type(ints, strings, "LinearClassifier")
    rows, width = batch_sizes(g, x, "LinearClassifier")
    coefficients, intercepts = attrs["coefficients"], attrs["intercepts"]
    targets = classifier_targets(coefficients, intercepts, width, labels)
    if x.shape is not None and (intercepts is not None or isinstance(width, int)):
        _check_coefficients(g, coefficients, targets, width)
    return Fact(dtype, (rows,)), Fact(F32, (rows, labels))


@linear_classifier.reference
def _(x: Array, **attrs: Any) -> tuple[Array, Array]:
    labels = labels_of(attrs["classlabels_ints"], attrs["classlabels_strings"])
    coefficients, intercepts = attrs["coefficients"], attrs["intercepts"]
    targets = classifier_targets(coefficients, intercepts, x.shape[-1], len(labels))
    scores, post = _linear(x, coefficients, intercepts, targets), attrs["post_transform"]
    if targets > 1:
        return labels[argmax_label(scores)], post_transformed(scores, post)
    chosen = binary_labels(labels)[(scores[:, 0] > 0).astype(np.intp)]
    if len(labels) == 1:
        return chosen, post_transformed(scores, post)
    return chosen, binary_scores(scores[:, 0], post, complement=True)


# Support vector machines

KERNELS: Final = (b"LINEAR", b"POLY", b"RBF", b"SIGMOID")

_SVM: Final = {
    "kernel_type": b"LINEAR",
    "post_transform": b"NONE",
    **dict.fromkeys(("kernel_params", "coefficients", "rho", "support_vectors"), array()),
}
_PAIRS: Final = {"prob_a": array(), "prob_b": array(), "vectors_per_class": array("ints")}
_SUPPORTS: Final = {"n_supports": 0, "one_class": 0}
svm_regressor = ml_op("SVMRegressor", 1, "x:T", "y:S", attrs=_SVM | _SUPPORTS)
svm_classifier = ml_op("SVMClassifier", 1, "x:T", "y:L z:S", attrs=_SVM | CLASS_INTS | _PAIRS)


class SvmKernel:
    """An SVM kernel function of rows and support vectors."""

    def __init__(self, vectors: Array | None, count: int, kind: bytes, params: Any) -> None:
        if vectors is None or vectors.size % count:
            actual = 0 if vectors is None else vectors.size
            raise InvalidGraph(f"{actual} numbers are not {count} support vectors")
        self.vectors: Final = vectors.astype(np.float64).reshape(count, -1)
        self.kind: Final = kind
        self.gamma, self.shift, self.degree = map(float, (0, 0, 0) if params is None else params)
        self.squares: Final = (self.vectors * self.vectors).sum(axis=1)

    def __call__(self, rows: Array) -> Array:
        """Return a column per support vector; in float64, since the squares of RBF cancel."""
        rows = rows.astype(np.float64)
        dots: Array = rows @ self.vectors.T
        if self.kind == b"LINEAR":
            return dots
        if self.kind == b"RBF":
            # |x - v|^2 = |x|^2 - 2 x.v + |v|^2, one matrix product for all pairs
            distance = (rows * rows).sum(axis=1)[:, None] - 2 * dots + self.squares
            return np.asarray(np.exp(-self.gamma * np.maximum(distance, 0)))
        dots = self.gamma * dots + self.shift
        return np.tanh(dots) if self.kind == b"SIGMOID" else np.power(dots, self.degree)


_KERNELS: Final = Memoized(SvmKernel)


def _check_kernel(kind: bytes, params: Any) -> None:
    check_choice("kernel_type", kind, KERNELS, InvalidGraph)
    if params is not None and len(params) != 3:
        raise InvalidGraph(
            f"kernel_params must be gamma, coef0 and degree, got {len(params)} numbers"
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
    rows, width = batch_sizes(g, x, "SVMRegressor")
    if x.shape is not None:
        g.equal(width, features, "features of the rows and of the SVMRegressor differ")
    return Fact(F32, (rows, 1))


@svm_regressor.reference
def _(x: Array, **attrs: Any) -> Array:
    rows, count = as_matrix(x), attrs["n_supports"]
    with np.errstate(all="ignore"):
        if count:
            kernel = (attrs["support_vectors"], count, attrs["kernel_type"], attrs["kernel_params"])
            rows = _KERNELS(*kernel)(rows)
        result = rows @ _list(attrs["coefficients"]).astype(rows.dtype) + _shift(attrs["rho"])
    if attrs["one_class"]:
        result = np.where(result > 0, 1, -1)
    # As in onnxruntime, post_transform does not apply to this score.
    return np.asarray(result, np.float32).reshape(-1, 1)


def _shift(rho: Any) -> float:
    return 0.0 if rho is None or not len(rho) else float(rho[0])


def _check_ensemble(attrs: dict[str, Any], labels: int) -> int:
    """Check the sizes of all attributes, and return the number of features of a row."""
    count = int(_list(attrs["vectors_per_class"]).sum())
    if not count:
        return _vector_width(attrs["coefficients"], labels, "coefficients")
    pairs = labels * (labels - 1) // 2
    expected = {"vectors_per_class": labels, "coefficients": (labels - 1) * count, "rho": pairs}
    if attrs["prob_a"] is not None or attrs["prob_b"] is not None:
        expected |= {"prob_a": pairs, "prob_b": pairs}
    for name, length in expected.items():
        actual = len(_list(attrs[name]))
        if actual < length or (name == "vectors_per_class" and actual > length):
            what = f"has {actual} {name}, and needs {length}"
            raise InvalidGraph(f"SVMClassifier of {labels} classes {what}")
    if attrs["vectors_per_class"].min() < 0:
        raise InvalidGraph(f"vectors_per_class has {attrs['vectors_per_class'].min()}")
    return _vector_width(attrs["support_vectors"], count, "support_vectors")


def _score_count(attrs: dict[str, Any], labels: int) -> int:
    """Return the number of scores: one per class, or one per pair of more than two classes.

    Scores are pairwise only without probabilities (prob_a).
    """
    pairwise = int(_list(attrs["vectors_per_class"]).sum()) > 0 and not len(_list(attrs["prob_a"]))
    return labels * (labels - 1) // 2 if pairwise and labels > 2 else labels


@svm_classifier.infer
def _(g: Scope, x: Fact, **attrs: Any) -> tuple[Fact, Fact]:
    check_transform(attrs["post_transform"])
    _check_kernel(attrs["kernel_type"], attrs["kernel_params"])
    ints, strings = attrs["classlabels_ints"], attrs["classlabels_strings"]
    dtype, labels = label_type(ints, strings, "SVMClassifier")
    features = _check_ensemble(attrs, labels)
    rows, width = batch_sizes(g, x, "SVMClassifier")
    if x.shape is not None:
        g.equal(width, features, "features of the rows and of the SVMClassifier differ")
    return Fact(dtype, (rows,)), Fact(F32, (rows, _score_count(attrs, labels)))


class SvmEnsemble:
    """One-vs-one SVMs: the support vectors of a classifier and their weights for each pair.

    The coefficients have a row per opposing class and a column per support vector (libsvm's
    layout): against class j, the vectors of class i use row j - 1 if j > i, and row j if j < i.
    """

    def __init__(
        self, vectors: Array, weights: Array, sizes: Array, kind: bytes, params: Any
    ) -> None:
        n, count = len(sizes), int(sizes.sum())
        self.kernel: Final = SvmKernel(vectors, count, kind, params)
        self.first, self.second = np.triu_indices(n, 1)
        matrix = weights[: (n - 1) * count].reshape(n - 1, count).astype(np.float64)
        ends = np.cumsum(sizes).tolist()
        self.class_weights: Final = [
            (slice(e - s, e), matrix[:, e - s : e].T.copy())
            for s, e in zip(sizes.tolist(), ends, strict=True)
        ]

    def decisions(self, rows: Array, rho: Array) -> Array:
        """Return the decision value of each pair of classes: positive if the first class wins."""
        similarities = self.kernel(rows)
        first, second = self.first, self.second
        votes = np.stack([similarities[:, own] @ weights for own, weights in self.class_weights])
        scores = votes[first, :, second - 1] + votes[second, :, first]
        return np.add(scores.T, rho[: len(first)])

    def winners(self, scores: Array) -> Array:
        """Return each row's class with the most pairwise wins, the first of equal ones."""
        classes = np.arange(len(self.class_weights))
        won = scores > 0
        mine = (self.first[:, None] == classes).astype(np.float64)
        theirs = (self.second[:, None] == classes).astype(np.float64)
        return np.asarray((won @ mine + ~won @ theirs).argmax(axis=1))


_ENSEMBLES: Final = Memoized(SvmEnsemble)


@svm_classifier.reference
def _(x: Array, **attrs: Any) -> tuple[Array, Array]:
    labels = labels_of(attrs["classlabels_ints"], attrs["classlabels_strings"])
    rows, post = as_matrix(x), attrs["post_transform"]
    if not _list(attrs["vectors_per_class"]).sum():
        return _linear_svm(rows, labels, attrs)
    names = ("support_vectors", "coefficients", "vectors_per_class", "kernel_type", "kernel_params")
    ensemble = _ENSEMBLES(*(attrs[n] for n in names))
    with np.errstate(all="ignore"):
        scores = ensemble.decisions(rows, attrs["rho"])
    chosen = labels[ensemble.winners(scores)]  # by voting, even with probabilities
    if len(_list(attrs["prob_a"])):
        return chosen, post_transformed(_probabilities(scores, ensemble, attrs), post)
    if len(labels) == 2:
        return chosen, binary_scores(scores[:, 0], post, complement=post != b"NONE")
    return chosen, post_transformed(scores, post)


def _linear_svm(rows: Array, labels: Array, attrs: dict[str, Any]) -> tuple[Array, Array]:
    """A classifier without support vectors: one row of coefficients per class."""
    weights = attrs["coefficients"].astype(rows.dtype).reshape(len(labels), -1)
    scores = rows @ weights.T + _shift(attrs["rho"])
    if len(labels) > 1:
        return labels[argmax_label(scores)], post_transformed(scores, attrs["post_transform"])
    chosen = binary_labels(labels)[(scores[:, 0] > 0).astype(np.intp)]
    return chosen, post_transformed(scores, attrs["post_transform"])


def _probabilities(scores: Array, ensemble: SvmEnsemble, attrs: dict[str, Any]) -> Array:
    """Class probabilities from decision values: Platt scaling, then pairwise coupling."""
    count, n = scores.shape[1], len(ensemble.class_weights)
    pair_probs = 1 - logistic(scores * attrs["prob_a"][:count] + attrs["prob_b"][:count])
    pair_probs = np.clip(pair_probs, 1e-7, 1 - 1e-7)  # libsvm's min_prob
    r = np.zeros((len(scores), n, n))
    r[:, ensemble.first, ensemble.second] = pair_probs
    r[:, ensemble.second, ensemble.first] = 1 - pair_probs
    return _couple(r)


def _couple(r: Array) -> Array:
    """Pairwise coupling: minimize the sum of (r_ji p_i - r_ij p_j)^2 over probabilities p.

    The second method of Wu, Lin and Weng (2004) by coordinate descent, with libsvm's tolerance
    0.005 / n and at least 100 iterations.
    """
    count, n = r.shape[:2]
    q = -r * r.transpose(0, 2, 1)
    q[:, range(n), range(n)] = (r * r).sum(axis=1)
    p = np.full((count, n), 1.0 / n)
    active = np.arange(count)
    for _ in range(max(100, n)):
        qp = np.einsum("rij,rj->ri", q[active], p[active])
        energy = (p[active] * qp).sum(axis=1)
        is_open = np.abs(qp - energy[:, None]).max(axis=1) >= 0.005 / n
        active, qp, energy = active[is_open], qp[is_open], energy[is_open]
        if not active.size:
            break
        for t in range(n):
            # Minimize over coordinate t, then renormalize p, Qp and the energy p'Qp in place.
            own = q[active, t, t]
            step = (energy - qp[:, t]) / own
            energy = (energy + step * (step * own + 2 * qp[:, t])) / (1 + step) ** 2
            qp = (qp + step[:, None] * q[active, t]) / (1 + step)[:, None]
            p[active, t] += step
            p[active] /= (1 + step)[:, None]
    return p


OPS: Final = (linear_classifier, linear_regressor, svm_classifier, svm_regressor)

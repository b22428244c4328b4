"""What the ai.onnx.ml estimators share: rows of features, transforms of scores, labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, F64, I32, I64, STRING, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops.arrays import Array

FEATURES: Final = frozenset((F32, F64, I32, I64))  # element types of the inputs of estimators
LABELS: Final = frozenset((STRING, I64))
SCORES: Final = frozenset((F32,))


def rows_of(g: Scope, x: Fact, what: str) -> tuple[Size, Size]:
    """How many rows and how many features a batch has; a single vector is one row."""
    if x.shape is None:
        return g.fresh("rows"), g.fresh("features")
    if x.rank == 1:
        return 1, x.dims[0]
    if x.rank != 2:
        raise ShapeError(f"{what} takes rows of features, of rank 1 or 2, not {x}")
    return x.dims[0], x.dims[1]


def as_rows(x: Array) -> Array:
    """The batch as a matrix, in float32, or in float64 where that would round."""
    x = x.reshape(1, -1) if x.ndim == 1 else x
    return x if x.dtype == np.float32 else x.astype(np.float64)


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), with no overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def softmax(x: Array) -> Array:
    """Each row as probabilities."""
    e: Array = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    e /= e.sum(axis=1, keepdims=True)
    return e


def softmax_zero(x: Array) -> Array:
    """Each row as probabilities, where a score of zero (no votes at all) stays zero."""
    voted = np.abs(x) > 1e-7
    top = x.max(axis=1, keepdims=True, initial=-np.inf)
    e: Array = np.where(voted, np.exp(x - top), x * np.exp(-top))
    e /= np.where(voted, e, 0).sum(axis=1, keepdims=True)
    return e


def probit(x: Array) -> Array:
    """The quantile of the normal distribution, by Winitzki's formula, as all runtimes have it."""
    t = 2 * x - 1
    a = 0.147
    log = np.log((1 - t) * (1 + t))
    half = 2 / (3.14159 * a) + log / 2
    size = np.sqrt(2 * (np.sqrt(half * half - log / a) - half))
    return np.asarray(np.copysign(size, t))


def _same(x: Array) -> Array:
    return x


TRANSFORMS: Final[dict[bytes, Callable[[Array], Array]]] = {
    b"NONE": _same,
    b"SOFTMAX": softmax,
    b"LOGISTIC": logistic,
    b"SOFTMAX_ZERO": softmax_zero,
    b"PROBIT": probit,
}


def check_transform(name: bytes) -> None:
    """Refuses a transform that ONNX does not name."""
    if name not in TRANSFORMS:
        known = ", ".join(t.decode() for t in TRANSFORMS)
        raise InvalidGraph(f"post_transform is {name.decode(errors='replace')}, and may be {known}")


def transformed(scores: Array, name: bytes) -> Array:
    """Transformed rows of scores. As in onnxruntime, only PROBIT touches a score that is alone."""
    if scores.shape[1] > 1 or name == b"PROBIT":
        with np.errstate(all="ignore"):
            scores = TRANSFORMS[name](scores.astype(np.float64))
    return scores.astype(np.float32)


def pair(score: Array, name: bytes, *, complement: bool) -> Array:
    """Two columns from the score of the second class; the first gets its complement or negative."""
    other = 1 - score if complement or name == b"PROBIT" else -score
    columns = np.stack([other, score], axis=1)
    if name == b"LOGISTIC":
        return transformed(np.stack([-score, score], axis=1), name)
    return transformed(columns, name) if name == b"PROBIT" else columns.astype(np.float32)


def top(scores: Array) -> Array:
    """The column of each row's largest score, the first of equal ones."""
    return np.asarray(np.where(np.isnan(scores), -np.inf, scores).argmax(axis=1))


def label_type(ints: Any, strings: Any, what: str) -> DType:
    """The element type of the labels; exactly one list of them must be there."""
    if bool(_length(ints)) == bool(_length(strings)):
        raise InvalidGraph(
            f"{what} needs its class labels as integers or as strings: "
            f"{_length(ints)} integers and {_length(strings)} strings are given"
        )
    return I64 if _length(ints) else STRING


def _length(values: Any) -> int:
    return 0 if values is None else len(values)


def label_count(ints: Any, strings: Any) -> int:
    """How many class labels there are."""
    return _length(ints) or _length(strings)


def labels_of(ints: Any, strings: Any) -> Array:
    """The class labels as an array."""
    return np.asarray(ints, np.int64) if _length(ints) else texts(strings)


def texts(strings: Any) -> Array:
    """Strings of attributes as a tensor of strings."""
    result = np.empty(_length(strings), object)
    result[:] = [s.decode("utf-8", "replace") for s in strings or ()]
    return result


def two_labels(labels: Array) -> Array:
    """The labels of a yes-or-no question: the two given ones, or 0 and 1 where only one is."""
    if len(labels) == 2:
        return labels
    return texts([b"0", b"1"]) if labels.dtype == object else np.array([0, 1])

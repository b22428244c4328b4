"""Shared by ops of ai.onnx.ml: declarations, rows of features, post transforms, class labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, F64, I32, I64, STRING, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import ML, Op, array
from sardonyx.ops.arrays import Array
from sardonyx.ops.inference import check_choice

FEATURES: Final = frozenset((F32, F64, I32, I64))  # element types of the inputs of estimators
LABELS: Final = frozenset((STRING, I64))
SCORES: Final = frozenset((F32,))
_LABEL_LISTS: Final = {"classlabels_strings": array("strings")}
CLASS_INTS: Final = _LABEL_LISTS | {"classlabels_ints": array("ints")}
CLASS_INT64S: Final = _LABEL_LISTS | {"classlabels_int64s": array("ints")}


def ml_op(name: str, since: int, inputs: str, outputs: str, **schema: Any) -> Op:
    """Declare an op of ai.onnx.ml; by default its types are T features, L labels and S scores."""
    types = {"T": FEATURES, "L": LABELS, "S": SCORES}
    used = {t: types[t] for t in types if f":{t}" in f"{inputs} {outputs}"}
    schema = {"types": used, "unranked": True, **schema}
    return Op(name, since, inputs, outputs, domain=ML, **schema)


def batch_sizes(g: Scope, x: Fact, what: str) -> tuple[Size, Size]:
    """Return the numbers of rows and of features of a batch; a vector is one row."""
    if x.shape is None:
        return g.new_dim("rows"), g.new_dim("features")
    if x.rank == 1:
        return 1, x.dims[0]
    if x.rank != 2:
        raise ShapeError(f"{what} needs rows of features, of rank 1 or 2, got {x}")
    return x.dims[0], x.dims[1]


def as_matrix(x: Array) -> Array:
    """Return the batch as a matrix, in float32, or in float64 where float32 would round."""
    x = x.reshape(1, -1) if x.ndim == 1 else x
    return x if x.dtype == np.float32 else x.astype(np.float64)


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), with no overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def softmax(x: Array) -> Array:
    """Return the softmax of each row."""
    e: Array = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    e /= e.sum(axis=1, keepdims=True)
    return e


def softmax_zero(x: Array) -> Array:
    """Return the softmax of each row, where a score of zero (no votes) stays zero."""
    has_votes = np.abs(x) > 1e-7  # onnxruntime's threshold
    largest = x.max(axis=1, keepdims=True, initial=-np.inf)
    e: Array = np.where(has_votes, np.exp(x - largest), x * np.exp(-largest))
    e /= np.where(has_votes, e, 0).sum(axis=1, keepdims=True)
    return e


def probit(x: Array) -> Array:
    """Return the normal quantile by Winitzki's approximation of erf^-1, as in onnxruntime."""
    t = 2 * x - 1
    a = 0.147
    log = np.log((1 - t) * (1 + t))
    half = 2 / (3.14159 * a) + log / 2
    size = np.sqrt(2 * (np.sqrt(half * half - log / a) - half))
    return np.asarray(np.copysign(size, t))


TRANSFORMS: Final[dict[bytes, Callable[[Array], Array]]] = {
    b"NONE": lambda x: x,
    b"SOFTMAX": softmax,
    b"LOGISTIC": logistic,
    b"SOFTMAX_ZERO": softmax_zero,
    b"PROBIT": probit,
}


def check_transform(name: bytes) -> None:
    """Raise for an unknown post_transform."""
    check_choice("post_transform", name, TRANSFORMS, InvalidGraph)


def post_transformed(scores: Array, name: bytes) -> Array:
    """Apply a post transform. As in onnxruntime, only PROBIT changes a single score per row."""
    if scores.shape[1] > 1 or name == b"PROBIT":
        with np.errstate(all="ignore"):
            scores = TRANSFORMS[name](scores.astype(np.float64))
    return scores.astype(np.float32)


def binary_scores(score: Array, name: bytes, *, complement: bool) -> Array:
    """Return two columns from the second class's score; the first is its complement or negative."""
    other = 1 - score if complement or name == b"PROBIT" else -score
    columns = np.stack([other, score], axis=1)
    if name == b"LOGISTIC":
        return post_transformed(np.stack([-score, score], axis=1), name)
    return post_transformed(columns, name) if name == b"PROBIT" else columns.astype(np.float32)


def argmax_label(scores: Array) -> Array:
    """Return the column of each row's largest score, the first of equal ones."""
    return np.asarray(np.where(np.isnan(scores), -np.inf, scores).argmax(axis=1))


def label_type(ints: Any, strings: Any, what: str) -> tuple[DType, int]:
    """Return the labels' element type and number; exactly one list of them must be present."""
    n_ints, n_strings = _length(ints), _length(strings)
    if bool(n_ints) == bool(n_strings):
        raise InvalidGraph(
            f"{what} needs its class labels as integers or as strings: "
            f"it has {n_ints} integers and {n_strings} strings"
        )
    return (I64, n_ints) if n_ints else (STRING, n_strings)


def _length(values: Any) -> int:
    return 0 if values is None else len(values)


def labels_of(ints: Any, strings: Any) -> Array:
    """Return the class labels as an array."""
    return np.asarray(ints, np.int64) if _length(ints) else string_array(strings)


def string_array(strings: Any) -> Array:
    """Return the strings of an attribute as a string tensor."""
    result = np.empty(_length(strings), object)
    result[:] = [s.decode("utf-8", "replace") for s in strings or ()]
    return result


def binary_labels(labels: Array) -> Array:
    """Return the labels of a binary classifier: its two, or 0 and 1 if it has only one."""
    if len(labels) == 2:
        return labels
    return string_array([b"0", b"1"]) if labels.dtype == object else np.array([0, 1])

"""Gradients of linear models and SVM regression of ai.onnx.ml, by their features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import F32, F64
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import ML
from sardonyx.ops.estimators.linear_svm import classifier_targets
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, ranked


def _rows(b: GradientBuilder, node: Node) -> Value:
    """Return the batch as a float64 matrix; a vector is one row."""
    x = b.cast(input_of(node, 0), F64)
    return x if ranked(x).rank == 2 else b.Unsqueeze(x, b.ints(0))


def _softmax_zero(b: GradientBuilder, x: Value) -> Value:
    """The softmax of each row, where a score of zero (no votes) stays zero."""
    has_votes, largest = b.Greater(b.Abs(x), 1e-7), b.ReduceMax(x, b.ints(1), keepdims=1)
    # Exp of scores without votes alone must not overflow.
    exponents = b.Exp(b.Sub(b.Where(has_votes, x, largest), largest))
    e = b.Where(has_votes, exponents, b.Mul(x, b.Exp(b.Neg(largest))))
    return b.Div(e, b.ReduceSum(b.where(has_votes, e), b.ints(1), keepdims=1))


def _probit(b: GradientBuilder, x: Value) -> Value:
    """The normal quantile by Winitzki's approximation of erf^-1, as `probit` in scores.py."""
    t, a = b.Sub(b.Mul(x, 2.0), 1.0), 0.147
    log = b.Log(b.Sub(b.const(1, x.tensor.dtype), b.Mul(t, t)))
    half = b.Add(b.Mul(log, 0.5), 2 / (3.14159 * a))
    root = b.Sqrt(b.Sub(b.Mul(half, half), b.Mul(log, 1 / a)))
    return b.Mul(b.Sign(t), b.Sqrt(b.Mul(b.Sub(root, half), 2.0)))


_TRANSFORMS: Final[dict[bytes, Callable[[GradientBuilder, Value], Value]]] = {
    b"NONE": lambda b, x: x,
    b"SOFTMAX": lambda b, x: b.Softmax(x, axis=1),
    b"LOGISTIC": lambda b, x: b.Sigmoid(x),
    b"SOFTMAX_ZERO": _softmax_zero,
    b"PROBIT": _probit,
}


def _post_transformed(b: GradientBuilder, scores: Value, name: bytes) -> Value:
    """Apply a post transform. As in onnxruntime, only PROBIT changes a single score per row."""
    if ranked(scores).dims[1] != 1 or name == b"PROBIT":
        scores = _TRANSFORMS[name](b, scores)
    return b.cast(scores, F32)


def _linear(b: GradientBuilder, node: Node, targets: int) -> Value:
    """Return one dot product per row and target."""
    weights: Any = node.attrs["coefficients"]
    matrix = weights.astype(np.float64).reshape(targets, -1).T
    scores = b.MatMul(_rows(b, node), b.const(matrix))
    intercepts = node.attrs["intercepts"]
    return scores if intercepts is None else b.Add(scores, b.const(intercepts, F64))


@decompose("LinearRegressor", domain=ML)
def _(b: GradientBuilder, node: Node) -> Value:
    scores = _linear(b, node, node.attrs["targets"])
    return _post_transformed(b, scores, node.attrs["post_transform"])


@decompose("LinearClassifier", domain=ML)
def _(b: GradientBuilder, node: Node) -> list[Value | None]:
    """The scores; labels have no gradient."""
    attrs, width = node.attrs, ranked(input_of(node, 0)).dims[-1]
    n_labels = len(
        attrs["classlabels_ints"]
        if attrs["classlabels_ints"] is not None
        else attrs["classlabels_strings"]
    )
    targets = classifier_targets(attrs["coefficients"], attrs["intercepts"], width, n_labels)
    scores, post = _linear(b, node, targets), attrs["post_transform"]
    if targets > 1 or n_labels == 1:
        return [None, _post_transformed(b, scores, post)]
    # The score of the second class; that of the first is its complement, or for LOGISTIC negative.
    first = b.Neg(scores) if post == b"LOGISTIC" else b.Sub(b.const(1, F64), scores)
    both = b.Concat(first, scores, axis=1)
    return [None, _post_transformed(b, both, post if post in (b"LOGISTIC", b"PROBIT") else b"NONE")]


@decompose("SVMRegressor", domain=ML)
def _(b: GradientBuilder, node: Node) -> Value:
    attrs, rows = node.attrs, _rows(b, node)
    if attrs["n_supports"]:
        rows = _similarities(b, node, rows)
    weights = b.const(np.reshape(attrs["coefficients"], (-1, 1)), F64)
    rho = 0.0 if attrs["rho"] is None or not len(attrs["rho"]) else float(attrs["rho"][0])
    result = b.Add(b.MatMul(rows, weights), rho)
    # As in onnxruntime, post_transform does not apply to this score.
    return b.cast(b.Sign(result) if attrs["one_class"] else result, F32)


def _similarities(b: GradientBuilder, node: Node, rows: Value) -> Value:
    """Return the kernel function of rows and support vectors: a column for each vector."""
    attrs, params = node.attrs, node.attrs["kernel_params"]
    gamma, shift, degree = map(float, (0, 0, 0) if params is None else params)
    vectors = np.reshape(attrs["support_vectors"], (attrs["n_supports"], -1)).astype(np.float64)
    dots = b.MatMul(rows, b.const(vectors.T))
    if attrs["kernel_type"] == b"LINEAR":
        return dots
    if attrs["kernel_type"] == b"RBF":
        squares = b.Add(
            b.ReduceSumSquare(rows, b.ints(1)), b.const((vectors * vectors).sum(axis=1))
        )
        return b.Exp(b.Mul(b.Sub(squares, b.Mul(dots, 2.0)), -gamma))
    dots = b.Add(b.Mul(dots, gamma), shift)
    return b.Tanh(dots) if attrs["kernel_type"] == b"SIGMOID" else b.Pow(dots, degree)

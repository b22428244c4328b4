"""Outputs of ai.onnx.ml estimators, as arguments of kernels (native/kernels/estimator_output.h)."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.base.records import as_tuple, frozen
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.graph import Value
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import binary_labels

NO_LABEL, ARGMAX, BINARY = range(3)  # rules for the label
POSTS: Final = (b"NONE", b"SOFTMAX", b"LOGISTIC", b"SOFTMAX_ZERO", b"PROBIT")


@frozen
class OutputRule:
    """How labels and outputs follow from the scores of a row."""

    label_rule: int
    post: int  # index of POSTS
    n_scores: int
    n_columns: int
    is_single: bool = False  # scores are rounded to float32 first
    is_second: bool = False  # BINARY: the columns are 0 and the score
    is_complement: bool = False  # BINARY: the first column is 1 - score
    is_probable: bool = False  # BINARY: the threshold is 0.5, not 0

    @property
    def ints(self) -> tuple[int, ...]:
        """The arguments of kernels, in their order."""
        return tuple(map(int, as_tuple(self)))


def array_constant(array: Array) -> Value:
    """Return a constant that is computed by the lowering."""
    return constant(ArrayConst(array))


def labels_value(labels: Array) -> Value:
    """Return integer labels as a constant; a single one is completed to a binary pair."""
    return array_constant(
        np.asarray(labels if len(labels) > 1 else binary_labels(labels), np.int64)
    )

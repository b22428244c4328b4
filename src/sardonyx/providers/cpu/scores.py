"""How the scores of ai.onnx.ml estimators end, as kernels/estimator_output.h reads it."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.base.records import as_tuple, frozen
from sardonyx.graph.const import Held
from sardonyx.graph.constant import constant
from sardonyx.graph.graph import Value
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import binary_labels

VALUES, BEST, YES_NO = range(3)  # endings
POSTS: Final = (b"NONE", b"SOFTMAX", b"LOGISTIC", b"SOFTMAX_ZERO", b"PROBIT")


@frozen
class Verdict:
    """What becomes of the scores of a row."""

    ending: int
    post: int
    n_scores: int
    n_columns: int
    is_single: bool = False  # scores are rounded to float32 before all else
    is_second: bool = False  # for YES_NO: the score stands beside a zero
    is_complement: bool = False  # for YES_NO: the first column is 1 - score
    is_probable: bool = False  # for YES_NO: a half decides, not zero

    @property
    def ints(self) -> tuple[int, ...]:
        """The numbers that kernels read, in their order."""
        return tuple(map(int, as_tuple(self)))


def held(array: Array) -> Value:
    """A constant that lowering makes."""
    return constant(Held(array))


def labels_value(labels: Array) -> Value:
    """Integer labels as a constant; where there is one, those of yes and no."""
    return held(np.asarray(labels if len(labels) > 1 else binary_labels(labels), np.int64))

"""Ops that are made of others run natively, in every form that their rows have."""

from __future__ import annotations

import pytest

from tests.cases import microsoft_fused, microsoft_matrix, microsoft_plain, microsoft_recurrence
from tests.cases import microsoft_tokens as tokens
from tests.rows import Row
from tests.test_ops import start, weights_among

# Ops of these files that a kernel is still missing for; some of their parts, or all of them.
PYTHON = frozenset((
    "BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "CropAndResize", "DynamicTimeWarping",
    "GatedRelativePositionBias", "Inverse", "LongformerAttention",
    "PackedAttention", "PackedMultiHeadAttention", "PagedAttention", "RelativePositionBias",
    "RemovePadding", "RestorePadding", "SparseAttention",
))  # fmt: skip
GOOD = [
    row
    for cases in (
        microsoft_fused.CASES,
        microsoft_matrix.CASES,
        microsoft_plain.CASES,
        microsoft_recurrence.CASES,
        tokens.CASES,
    )
    for row in cases
    if row.fails is None
]


def is_open(row: Row) -> bool:
    """Whether a state has an axis that no kernel knows."""
    return bool(row.attrs.get("state_window")) or (row.op == "CausalConvWithState"
                                                   and row.inputs[0].ndim > 3)  # fmt: skip


def python_steps(row: Row) -> int:
    return start(row, constants=weights_among(row))._compiled.program.python_steps


@pytest.mark.parametrize(
    "row", [row for row in GOOD if row.op not in PYTHON and not is_open(row)], ids=str
)
def test_no_step_in_python(row: Row) -> None:
    assert not python_steps(row)


def test_what_is_left_to_python() -> None:
    assert {row.op for row in GOOD if row.op in PYTHON and python_steps(row)} == PYTHON

"""Ops that are made of others run natively, in every form that their rows have."""

from __future__ import annotations

import pytest

from tests.cases import microsoft_fused, microsoft_matrix, microsoft_plain, microsoft_recurrence
from tests.cases import microsoft_tokens as tokens
from tests.rows import Row
from tests.test_ops import start, weights_among

# Ops of these files that a kernel is still missing for; some of their parts, or all of them.
PYTHON = frozenset((
    "BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "CropAndResize", "DynamicTimeWarping", "GatedRelativePositionBias", "GridSample",
    "Inverse", "Irfft", "LongformerAttention", "PackedAttention", "PackedMultiHeadAttention",
    "PagedAttention", "RelativePositionBias", "RemovePadding", "RestorePadding", "Rfft",
    "SparseAttention", "Unique",
))  # fmt: skip
ROWS = [
    row
    for cases in (
        microsoft_fused.CASES,
        microsoft_matrix.CASES,
        microsoft_plain.CASES,
        microsoft_recurrence.CASES,
        tokens.CASES,
    )
    for row in cases
    if row.fails is None and row.op not in PYTHON
]


def is_open(row: Row) -> bool:
    """Whether a state has an axis that no kernel knows."""
    return bool(row.attrs.get("state_window")) or (row.op == "CausalConvWithState"
                                                   and row.inputs[0].ndim > 3)  # fmt: skip


@pytest.mark.parametrize("row", [row for row in ROWS if not is_open(row)], ids=str)
def test_no_step_in_python(row: Row) -> None:
    session = start(row, constants=weights_among(row))
    assert session._compiled.program.python_steps == 0

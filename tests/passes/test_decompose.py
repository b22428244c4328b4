"""Decomposed ops run natively, in every variant that their cases have."""

from __future__ import annotations

import pytest

from tests.op_cases import Case, case_modules
from tests.test_ops import start, weights_among

# Ops of these files that a kernel is still missing for; some of their parts, or all of them.
PYTHON = frozenset((
    "BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "CropAndResize", "DynamicTimeWarping",
    "GatedRelativePositionBias", "Inverse", "LongformerAttention",
    "PackedAttention", "PackedMultiHeadAttention", "PagedAttention", "RelativePositionBias",
    "RemovePadding", "RestorePadding", "SparseAttention",
))  # fmt: skip
MODULES = frozenset((
    "attention.linear_contrib", "attention.packed_sparse", "attention.upgraded",
    "conv.causal_contrib", "conv.dynamic_pads", "conv.nhwc", "elementwise.upgraded",
    "gather.upgraded", "matmul.activation", "matmul.upgraded", "matrix.contrib", "moe.standard",
    "move.unfold", "move.upgraded", "nbits.upgraded", "normalize.embed_group_norm",
    "normalize.hyper_connections", "normalize.upgraded", "quantize.upgraded", "random.upgraded",
    "reduce.upgraded", "sample.crop_and_resize", "sample.upgraded", "select.upgraded",
    "shape.upgraded", "signal.upgraded", "softmax.upgraded",
))  # fmt: skip
GOOD = [
    row
    for module in case_modules()
    if module.__name__.removeprefix("tests.cases.") in MODULES
    for row in module.CASES
    if row.fails is None
]


def is_open(row: Case) -> bool:
    """Whether a state has an axis that no kernel knows."""
    return bool(row.attrs.get("state_window")) or (row.op == "CausalConvWithState"
                                                   and row.inputs[0].ndim > 3)  # fmt: skip


def python_steps(row: Case) -> int:
    return start(row, constants=weights_among(row))._compiled.program.python_steps


@pytest.mark.parametrize(
    "row", [row for row in GOOD if row.op not in PYTHON and not is_open(row)], ids=str
)
def test_decomposed_ops_run_natively(row: Case) -> None:
    assert not python_steps(row)


def test_cases_left_to_the_reference() -> None:
    assert {row.op for row in GOOD if row.op in PYTHON and python_steps(row)} == PYTHON

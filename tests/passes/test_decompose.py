"""Decomposed ops run natively, in every variant that their cases have."""

from __future__ import annotations

import pytest

from tests.op_cases import Case, case_modules
from tests.test_ops import start, weights_among

# Ops of these files that a kernel is still missing for; some of their parts, or all of them.
PYTHON = frozenset((
    "DynamicTimeWarping", "GatedRelativePositionBias", "LongformerAttention", "PackedAttention",
    "PackedMultiHeadAttention", "PagedAttention", "RelativePositionBias", "RemovePadding",
    "RestorePadding", "SparseAttention",
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
    case
    for module in case_modules()
    if module.__name__.removeprefix("tests.cases.") in MODULES
    for case in module.CASES
    if case.fails is None
]


def is_open(case: Case) -> bool:
    """Whether a state has an axis that no kernel knows."""
    return bool(case.attrs.get("state_window")) or (case.op == "CausalConvWithState"
                                                   and case.inputs[0].ndim > 3)  # fmt: skip


def python_steps(case: Case) -> int:
    return start(case, constants=weights_among(case))._compiled.program.python_steps


@pytest.mark.parametrize(
    "case", [case for case in GOOD if case.op not in PYTHON and not is_open(case)], ids=str
)
def test_decomposed_ops_run_natively(case: Case) -> None:
    assert not python_steps(case)


def test_cases_left_to_the_reference() -> None:
    assert {case.op for case in GOOD if case.op in PYTHON and python_steps(case)} == PYTHON

"""OpInfo samples of views, moves, indexing and order statistics: no call is left to torch."""

from __future__ import annotations

from typing import Any, Final

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch's own test utilities need it

from tests.dynamo.op_info import OPS, check, samples  # noqa: E402 - after the check for torch

NAMES: Final = """
    arange as_strided as_strided_copy as_strided_scatter atleast_2d block_diag broadcast_to
    bucketize cat chunk column_stack constant_pad_nd contiguous diag diag_embed diagonal
    diagonal_copy diagonal_scatter diagflat dsplit expand expand_as eye fill flatten flip full
    full_like gather hsplit index_add index_copy index_put index_reduce.amax index_reduce.amin
    index_reduce.mean index_reduce.prod index_select kthvalue linspace masked_fill masked_scatter
    median meshgrid.variadic_tensors movedim msort nanmedian narrow_copy new_full new_ones
    nn.functional.channel_shuffle nn.functional.embedding nn.functional.embedding_bag
    nn.functional.pad.circular nn.functional.pad.constant nn.functional.pad.reflect
    nn.functional.pad.replicate nn.functional.pad.replicate_negative nn.functional.pixel_shuffle
    nn.functional.pixel_unshuffle nn.functional.unfold permute put ravel repeat reshape roll rot90
    scatter scatter_add scatter_reduce.amax scatter_reduce.amin scatter_reduce.mean
    scatter_reduce.prod scatter_reduce.sum searchsorted select select_scatter slice slice_scatter
    sort split split_with_sizes squeeze stack swapaxes take tile topk trace transpose tril
    tril_indices triu triu_indices unbind unfold unfold_copy unsqueeze view vsplit where zeros_like
    _unsafe_masked_index _unsafe_masked_index_put_accumulate __getitem__
"""
# Raised by torch before a graph exists: sizes or numbers that depend on data.
TORCH_LIMITS: Final = ("DynamicOutputShapeException", "DataDependentOutputException")
# The first samples of these have ties among bfloat16 or int64 numbers, which eager torch's partial
# and unstable sorts leave in any order.
FLOAT32_ONLY: Final = {"kthvalue", "median", "msort", "nanmedian", "sort", "topk"}
MOST: Final = 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("name", [n for n in NAMES.split() if n in OPS])
def test_samples(name: str, dtype: str) -> None:
    op, kind = OPS[name], getattr(torch, dtype)
    if kind not in op.supported_dtypes("cpu") or (dtype != "float32" and name in FLOAT32_ONLY):
        pytest.skip(f"not for {dtype}")
    for sample in samples(op, kind, MOST):
        _check(op, kind, sample)


def _check(op: Any, dtype: Any, sample: Any) -> None:
    try:
        report = check(op, dtype, sample)
    except Exception as error:
        if type(error).__name__ not in TORCH_LIMITS:
            raise
        return
    assert not report.fallbacks, str(report)

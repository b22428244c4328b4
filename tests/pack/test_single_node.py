"""Round trips of single-node models: packs can store what passes create from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.op_cases import Case, case, f32
from tests.oracle import feeds_of, model_of
from tests.pack.packs import embedded, opened, packed, uses_pack

MASKED = case(
    "MultiHeadAttention", f32(2, 3, 32), f32(2, 5, 32), f32(2, 5, 24), None,
    np.array([3, 5], np.int32), domain="com.microsoft", num_heads=4,
)  # fmt: skip
QUANTIZED = case(
    "DynamicQuantizeMatMul", f32(3, 5), np.ones((5, 4), np.int8), f32(1), domain="com.microsoft"
)
WORDS = case("Gather", np.array(["a", "b", "c"], object), np.array([2, 0]))


@pytest.mark.parametrize(
    ("case", "constants"),
    [(MASKED, ["x1", "x2", "x4"]), (QUANTIZED, ["x1"]), (WORDS, ["x0", "x1"])],
    ids=["truths", "one scale of open size", "strings"],
)
def test_round_trip_of_one_node(case: Case, constants: list[str], tmp_path: Path) -> None:
    path = embedded(tmp_path, model_of(case, constants=constants, symbolic=case is QUANTIZED))
    feeds = {k: v for k, v in feeds_of(case).items() if k not in constants}
    plain = opened(path)
    packed(path)
    session = opened(path)
    assert uses_pack(session)
    for got, want in zip(session.run(None, feeds), plain.run(None, feeds), strict=True):
        np.testing.assert_array_equal(got, want, strict=True)

"""The part of a region that depends on sizes alone, and the limit of what is cached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx

pytest.importorskip("torch")
from sardonyx.providers.torch import Torch, region

MASKED = """<ir_version: 9, opset_import: ["": 21]>
g (float[n,4] x) => (float[n,4] y)
<int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}>
{
  sizes = Shape <start = 0, end = 1> (x)
  n = Squeeze (sizes)
  row = Range (zero, n, one)
  column = Unsqueeze (row, axis)
  seen = LessOrEqual (row, column)
  mask = Cast <to = 1> (seen)
  y = MatMul (mask, x)
}"""
# The bytes that may be kept, and how many of ten masks of 16 x 16 numbers and up are kept then.
BUDGETS = {"more than enough": (1 << 20, 8), "for two": (2 * 25 * 25 * 4, 2), "for none": (100, 1)}


@pytest.mark.parametrize(("budget", "kept"), BUDGETS.values(), ids=BUDGETS)
def test_masks_of_many_sizes_are_not_all_kept(
    budget: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def compile_region(self: Torch, given: Any) -> Any:
        made.append(region.TorchRegion(self, given))
        return made[-1]

    monkeypatch.setattr(Torch, "compile_region", compile_region)
    monkeypatch.setattr(region, "_MAX_SPECIALIZATION_BYTES", budget)
    session = sardonyx.InferenceSession(
        parser.parse_model(MASKED), providers=[("TorchExecutionProvider", {"device": "cpu"})]
    )
    for n in range(16, 26):
        x = np.ones((n, 4), np.float32)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, np.cumsum(x, 0))
    (only,) = made
    assert len(only._specializations) == kept

"""Indices in data that are out of range: an error with the node's name, and no stray read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx import GraphOptimizationLevel as Level
from sardonyx.errors import SardonyxError
from tests.op_cases import Case, case, f32, of
from tests.oracle import feeds_of, model_of

I32, I64 = np.int32, np.int64
HUGE = 2**31 - 1
CACHE = f32(4, 2)  # of four positions
HEADS = f32(1, 3, 8)  # one batch, three rows
LW, LR = f32(1, 16, 2), f32(1, 16, 4)
SEQUENCE = f32(5, 2, 2)  # five steps, two batches
IMAGE = f32(1, 1, 8, 8)
PAST = f32(1, 1, 4, 8)  # a cache of four keys
MICROSOFT = "com.microsoft"


def lens(*numbers: int) -> Any:
    return of(numbers, I32)


def roi(image: int, op: str = "RoiAlign") -> Case:
    if op == "MaxRoiPool":
        return case(op, IMAGE, of([[image, 0, 0, 4, 4]]), pooled_shape=[2, 2])
    return case(op, IMAGE, of([[0, 0, 4, 4]]), of([image], I64), output_height=2, output_width=2)


def query(length: int, total: int) -> Case:
    return case(
        "GroupQueryAttention",
        f32(1, 1, 8), f32(1, 1, 8), f32(1, 1, 8), PAST, PAST, of([length], I32), of(total, I32),
        domain=MICROSOFT, num_heads=1, kv_num_heads=1, outputs=3,
    )  # fmt: skip


CASES = [
    *(case("RotaryEmbedding", HEADS, CACHE, CACHE, of([[0, 1, p]], I64), num_heads=2)
      for p in (4, -1, HUGE)),
    *(case("RotaryEmbedding", HEADS, of([[0, 1, p]], I64), CACHE, CACHE, num_heads=2,
           domain=MICROSOFT) for p in (4, -1, HUGE)),
    *(case("RotaryEmbedding", HEADS, of([p], I64), CACHE, CACHE, num_heads=2, domain=MICROSOFT)
      for p in (2, -1, HUGE)),
    *(case("GRU", SEQUENCE, f32(1, 9, 2), f32(1, 9, 3), None, lens(*n), hidden_size=3)
      for n in ((6, 1), (-1, 1), (1, HUGE))),
    *(case("LSTM", SEQUENCE, LW, LR, None, lens(*n), hidden_size=4) for n in ((6, 1), (1, -5))),
    *(case("RNN", SEQUENCE, f32(1, 3, 2), f32(1, 3, 3), None, lens(*n), hidden_size=3)
      for n in ((6, 1), (1, -5))),
    *(case("ReverseSequence", f32(5, 2), of(n, I64)) for n in ((6, 1), (1, -1))),
    *(roi(i, op) for op in ("RoiAlign", "MaxRoiPool") for i in (1, -1, 10**6)),
    *(case("Gather", f32(3, 2), of([i], I64)) for i in (3, -4, 2**62)),
    *(case("GatherElements", f32(3, 2), of([[i, 0]], I64)) for i in (3, -4)),
    *(case("GatherND", f32(3, 2), of([[i]], I64)) for i in (3, -4, -(2**62))),
    *(case("ScatterElements", f32(3, 2), of([[i, 0]], I64), f32(1, 2)) for i in (3, -4)),
    *(case("ScatterND", f32(3, 2), of([[i]], I64), f32(1, 2)) for i in (3, -4)),
    *(case("TensorScatter", f32(2, 4, 3), f32(2, 2, 3), of([0, i], I64), mode="linear", axis=1)
      for i in (3, -1, HUGE)),
    *(case("NegativeLogLikelihoodLoss", f32(2, 3), of([0, i], I64)) for i in (3, -1)),
    *(case("SoftmaxCrossEntropyLoss", f32(2, 3), of([0, i], I64)) for i in (3, -1)),
    *(case("MaxUnpool", f32(1, 1, 2, 2), of([[[[0, 1], [2, i]]]], I64), kernel_shape=[2, 2])
      for i in (10**6, -1)),
    *(case("ArrayFeatureExtractor", f32(2, 3), of([i], I64), domain="ai.onnx.ml") for i in (3, -1)),
    *(query(n, t) for n, t in ((HUGE, 5), (-2, 5), (9, 5))),
    *(case("Resize", IMAGE, None, None, of([1, 1, n, 2], I64), mode="linear")
      for n in (2**33, 2**40)),
    *(case("DFT", f32(1, 8, 1), of(n, I64)) for n in (0, -1, 2**62)),
    *(case("STFT", f32(1, 8, 1), of(n, I64), None, of(m, I64))
      for n, m in ((0, 4), (1, 0), (1, 9), (-1, 2**62))),
    *(case("DynamicQuantizeLSTM", SEQUENCE, of(np.zeros((1, 2, 8)), np.uint8),
           of(np.zeros((1, 2, 8)), np.uint8), None, lens(*n), None, None, None, of([0.1]),
           of([0], np.uint8), of([0.1]), of([0], np.uint8), hidden_size=2, domain=MICROSOFT)
      for n in ((6, 1), (1, -5))),
]  # fmt: skip


@pytest.mark.parametrize("level", [Level.ORT_DISABLE_ALL, Level.ORT_ENABLE_ALL], ids=["raw", "all"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case}"[:60])
def test_refused(case: Case, level: Level) -> None:
    model = model_of(case)
    model.graph.node[0].name = "the_node"
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = level
    session = sardonyx.InferenceSession(model, options)
    with pytest.raises(SardonyxError) as error:
        session.run(None, feeds_of(case))
    assert "the_node" in str(error.value)


def test_tables_larger_than_memory() -> None:
    """Whoever prepares a transform of that length would be busy for minutes, and then killed."""
    c = case("DFT", f32(1, 8, 1), of(2**31, I64))
    model = model_of(c, constants=["x1"])
    session = sardonyx.InferenceSession(model)
    with pytest.raises(SardonyxError, match="not enough memory for the kernel's tables"):
        session.run(None, {"x0": f32(1, 8, 1)})

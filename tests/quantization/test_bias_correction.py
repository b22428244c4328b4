"""Biases corrected by the error of rounded weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sardonyx.quantization.bias_correction import corrected_biases, input_means
from sardonyx.quantization.document import read_document
from sardonyx.quantization.document.session import open_session
from sardonyx.quantization.histogram import Histogram
from sardonyx.quantization.qdq_quantizer import QDQQuantizer
from sardonyx.quantization.quant_types import QuantType
from sardonyx.quantization.search.ranges import calibrated, least_squares

_HEAD = '<ir_version: 8, opset_import: ["": %d]> g '
# An expression per op, and the shapes of its weight, its bias and its input.
_OPS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "Conv": ("y = Conv <group = 2> (x, w, b)", (6, 2, 3, 3), (6,), (2, 4, 5, 5)),
    "Gemm": ("y = Gemm <transB = 1> (x, w, b)", (6, 8), (6,), (4, 8)),
    "MatMul": ("p = MatMul(x, w)  y = Add(p, b)", (8, 6), (6,), (2, 3, 8)),
}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("op", _OPS)
def test_means_of_outputs(op: str, opset: int) -> None:
    """The mean of each output channel is that of the original, but for rounded activations."""
    text, weight, bias, shape = _OPS[op]
    dims = ", ".join(f"d{i}" if i == 0 else str(d) for i, d in enumerate(shape))
    out = dims.replace("8", "6") if op != "Conv" else "d0, 6, 3, 3"
    source = f"({'float[' + dims + ']'} x) => (float[{out}] y) {{ {text} }}"
    model = onnx.parser.parse_model(_HEAD % opset + source)
    rng = np.random.default_rng(0)
    for name, size in (("w", weight), ("b", bias)):
        array = rng.normal(size=size).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.node[0].name = "layer"
    document = read_document(model)
    feeds = [{"x": rng.normal(3, 1, shape).astype(np.float32)} for _ in range(8)]

    def quantized(base: Any) -> Any:
        made = base.copy()
        ranges = calibrated(document, [op], feeds)["minmax"]
        types = QuantType.QInt4, QuantType.QUInt16  # so that weights alone lose much
        QDQQuantizer(made, False, False, *types, ranges, ["layer"], [], [op]).quantize_document()
        return made

    first = quantized(document)
    better = document.copy()
    corrected_biases(better, first, input_means(document, {"x"}, feeds), {"layer"})
    axis = tuple(i for i in range(len(shape)) if i != (1 if op == "Conv" else len(shape) - 1))

    def means(model: Any) -> Any:
        session = open_session(model)
        runs = [session.run(None, feed)[0] for feed in feeds]
        return np.mean([run.mean(axis) for run in runs], axis=0)

    expected, before, after = (means(m) for m in (document, first, quantized(better)))
    assert np.abs(after - expected).max() < 0.2 * np.abs(before - expected).max()


def test_shared_biases_stay() -> None:
    text = "(float[n, 4] x) => (float[n, 4] y) { a = Gemm(x, w, b)  y = Gemm(a, v, b) }"
    model = onnx.parser.parse_model(_HEAD % 13 + text)
    for name, size in (("w", (4, 4)), ("v", (4, 4)), ("b", (4,))):
        array = np.random.default_rng(1).normal(size=size).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.node[0].name, model.graph.node[1].name = "first", "second"
    document = read_document(model)
    before = document.graph.initializers["b"]
    corrected_biases(document, document, {"x": np.ones(4)}, {"first", "second"})
    assert document.graph.initializers["b"] is before


def test_least_squares_ignores_a_few_outliers() -> None:
    values = np.concatenate([np.random.default_rng(0).normal(size=100_000), [1000.0]])
    counts, edges = np.histogram(values, 100_000)
    _, high = least_squares(Histogram(counts, edges, values.min(), values.max()))
    assert high > 800.0  # to clip it costs more than coarse steps for all others
    values[-1] = 12.0
    counts, edges = np.histogram(values, 4096)
    _, high = least_squares(Histogram(counts, edges, values.min(), values.max()))
    assert 4.0 < high < 12.0


def test_least_squares_of_a_constant() -> None:
    counts, edges = np.histogram(np.zeros(4), 8)
    assert least_squares(Histogram(counts, edges, 0.0, 0.0)) == (0.0, 0.0)

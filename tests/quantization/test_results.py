"""Quantized models compute what the originals do, whatever the form of their nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx import quantization as q

pytestmark = pytest.mark.filterwarnings("ignore")
FORMATS = ("QDQ", "QOperator", "dynamic")
SIZES = np.logspace(-2, 1, 16).astype(np.float32)  # of channels: only their own scales fit them


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(np.float32)


def model(text: str, **constants: Any) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    made.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    for i, node in enumerate(made.graph.node):
        node.name = f"{node.op_type}_{i}"
    return made


ROWS, IMAGES = {"x": values(8, 16)}, {"x": values(2, 4, 8, 8)}
W, V, B = values(16, 6), values(16, 6, seed=1) * 20, values(6) * 4
TABLE, KERNEL = values(20, 16), values(4, 4, 3, 3)
_GEMM = "(float[n, 16] x) => (float[n, 6] y) { y = Gemm"
_CONV = "(float[n, 4, 8, 8] x) => "
_PADS = "<pads = [1, 1, 1, 1]>"
_IF = """e = If(c) <
    then_branch = t() => (float[n, 6] o) { o = Identity(h) },
    else_branch = u() => (float[n, 6] p) { p = Neg(h) }
>"""
# The model, its inputs, and arguments.
MODELS: dict[str, tuple[onnx.ModelProto, dict[str, Any], dict[str, Any]]] = {
    "beta": (model(_GEMM + "<beta = 2.5>(x, w, b) }", w=W, b=B), ROWS, {}),
    "beta of 0": (model(_GEMM + "<beta = 0.0>(x, w, b) }", w=W, b=B), ROWS, {}),
    "beta of a bias in floats": (
        model(_GEMM + "<beta = 2.5>(x, w, b) }", w=W, b=B),
        ROWS,
        {"extra_options": {"QuantizeBias": False}},
    ),
    "alpha": (model(_GEMM + "<alpha = 0.25>(x, w, b) }", w=W, b=B), ROWS, {}),
    "bias of several nodes": (
        model(
            """(float[n, 16] x) => (float[n, 6] y, float[n, 6] z, float[n, 6] u) {
                y = Gemm <beta = 2.0> (x, w, b)
                z = Gemm <beta = 0.5, alpha = -0.5> (x, v, b)
                u = Gemm(x, v, b)
            }""",
            w=W, v=V, b=B,
        ),
        ROWS,
        {},
    ),
    **{
        f"bias {bias.shape}": (
            model(_GEMM + "(x, w, b) }", w=W, b=bias), ROWS, {"per_channel": True}
        )
        for bias in (B[None], values(8, 1), values(8, 6), np.float32(3))
    },
    "bias of a weight in blocks": (
        model(_GEMM + "(x, w, b) }", w=W, b=B), ROWS, {"extra_options": {"BlockSize": 4}}
    ),
    "channels of two axes": (
        model(
            """(float[n, 16] x) => (float[n, 16] y, float[n, 16] z) {
                y = Gemm <transB = 1> (x, w)
                z = MatMul(x, w)
            }""",
            w=values(16, 16) * SIZES[:, None],
        ),
        ROWS,
        {"per_channel": True},
    ),
    "a weight that is added": (
        model(
            """(float[n, 16] x) => (float[n, 16] y, float[16, 16] z) {
                y = MatMul(x, w)
                z = Add(w, c)
            }""",
            w=values(16, 16) * SIZES, c=values(16, 16, seed=1),
        ),
        ROWS,
        {"per_channel": True},
    ),
    "a weight that is an output": (
        model("(float[n, 16] x) => (float[n, 6] y, float[16, 6] w) { y = MatMul(x, w) }", w=W),
        ROWS,
        {},
    ),
    "a table that is a weight": (
        model(
            """(int64[n] x) => (float[n, 20] y) {
                e = Gather(w, x)
                y = Gemm <transB = 1> (e, w, b)
            }""",
            w=TABLE, b=values(20),
        ),
        {"x": np.arange(7)},
        {"per_channel": True},
    ),
    "vector": (
        model("(float[n, 16] x) => (float[n] y) { y = MatMul(x, w) }", w=values(16)),
        ROWS,
        {"per_channel": True},
    ),
    "computed bias": (
        model(
            f"""{_CONV} (float[n, 4, 8, 8] y, float[n, 4, 8, 8] z) {{
                b = Sub(b1, b2)
                y = Conv {_PADS} (x, w, b)
                z = Conv {_PADS} (x, w)
            }}""",
            w=KERNEL, b1=values(4), b2=values(4, seed=1),
        ),
        IMAGES,
        {},
    ),
    "groups": (
        model(
            f"{_CONV} (float[n, 6, 10, 10] y) {{ y = ConvTranspose <group = 2> (x, w, b) }}",
            w=values(4, 3, 3, 3), b=values(6),
        ),
        IMAGES,
        {"per_channel": True},
    ),
    "Relu beside another reader": (
        model(
            f"""{_CONV} (float[n, 4, 8, 8] y) {{
                a = Conv {_PADS} (x, w, b)
                r = Relu(a)
                c = Conv {_PADS} (r, w, b)
                y = Add(a, c)
            }}""",
            w=KERNEL, b=values(4),
        ),
        IMAGES,
        {},
    ),
    "Relu of an output": (
        model("(float[n, 16] x) => (float[n, 6] y, float[n, 6] z) { y = MatMul(x, w) z = Relu(y) }",
              w=W),
        ROWS,
        {},
    ),
    "Relu of what a body reads": (
        model(
            f"""(float[n, 16] x, bool c) => (float[n, 6] y) {{
                h = MatMul(x, w) r = Relu(h) s = MatMul(r, v) {_IF} y = Add(s, e)
            }}""",
            w=W, v=values(6, 6),
        ),
        {**ROWS, "c": np.array(True)},
        {},
    ),
    "body": (
        model(
            f"(float[n, 16] x, bool c) => (float[n, 6] y) {{ h = MatMul(x, w) {_IF} y = Neg(e) }}",
            w=W,
        ),
        {**ROWS, "c": np.array(True)},
        {"extra_options": {"EnableSubgraph": True}},
    ),
    "what a body reads, smoothed": (
        model(
            f"""(float[n, 16] x, bool c) => (float[n, 6] y) {{
                h = LayerNormalization(x, s, b) m = MatMul(h, w) {_IF.replace("6", "16")}
                z = MatMul(e, v) y = Add(m, z)
            }}""",
            w=W, v=values(16, 6, seed=2), s=SIZES, b=values(16),
        ),
        {**ROWS, "c": np.array(True)},
        {"extra_options": {"SmoothQuant": True}},
    ),
    "Clip without 0": (
        model("(float[n, 16] x) => (float[n, 6] y) { a = MatMul(x, w) y = Clip(a, low, high) }",
              w=W, low=np.float32(1), high=np.float32(3)),
        ROWS,
        {},
    ),
    "small float16": (
        model("(float16[n, 16] x) => (float16[n, 6] y) { y = MatMul(x, w) }",
              w=(W * 0.002).astype(np.float16)),
        {"x": ROWS["x"].astype(np.float16)},
        {},
    ),
}  # fmt: skip
# QLinear ops have neither float16 nor blocks.
_QDQ_ONLY = {"small float16", "bias of a weight in blocks"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("form", FORMATS)
def test_result(tmp_path: Path, form: str, name: str) -> None:
    source, feeds, arguments = MODELS[name]
    if form == "QOperator" and name in _QDQ_ONLY:
        pytest.skip("QLinear ops have no such types")
    path = tmp_path / "quantized.onnx"
    if form == "dynamic":
        q.quantize_dynamic(source, path, **arguments)
    else:
        formats = {"quant_format": q.QuantFormat[form], "activation_type": q.QuantType.QUInt8}
        q.quantize_static(source, path, [feeds], **formats, **arguments)
    expected = sardonyx.InferenceSession(source).run(None, feeds)
    found = sardonyx.InferenceSession(path).run(None, feeds)
    onnx.checker.check_model(path, full_check=form == "dynamic")
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a.astype(np.float64) - b).max() < 0.05 * np.abs(b).max()

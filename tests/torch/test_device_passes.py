"""Device passes: skip connections fused with norms, and matmuls of one input merged."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import sardonyx

pytest.importorskip("torch")
TORCH = [("TorchExecutionProvider", {"device": "cpu"})]
HEAD = '<ir_version: 9, opset_import: ["": 23]> g (float[3,4] x, float[3,4] z, float[4] c)'
VECTORS = (
    "float[4] g = {1,2,3,4}, float[1,4] row = {1,2,3,4}, float[1] one = {2}, float s = {0.5},"
    "float[4,4] w = {1,2,3,4,5,6,7,8,9,8,7,6,5,4,3,2}, float[4] b = {5,6,7,8},"
    "float[3,1] column = {1,2,3}, uint8[4,4] q = {1,2,3,4,5,6,7,8,9,8,7,6,5,4,3,2}"
)
OWN = "d = DequantizeLinear(q, s) v = MatMul(x, d)"  # with it, all products are our own
END = " u = Add(a, v)"
GRAPHS = {
    "a gain for each": ("t = Add(x, z) u = LayerNormalization(t, g)", {"SkipLayerNormalization"}),
    "a gain that is fed": ("t = Add(x, z) u = RMSNormalization(t, c)", {"SkipSimplified"}),
    "one for both": ("t = Add(x, x) u = LayerNormalization(t, g)", {"SkipLayerNormalization"}),
    "one gain for all": ("t = Add(x, z) u = LayerNormalization(t, one)", {"Add"}),
    "a gain that is a row": ("t = Add(x, z) u = RMSNormalization(t, row)", {"Add"}),
    "a shift for all": ("t = Add(x, z) u = LayerNormalization(t, g, one)", {"Add"}),
    "two norms": ("a = Add(x, z) t = LayerNormalization(a, g) u = RMSNormalization(a, g)", set()),
    "one matrix twice": ("t = MatMul(x, w) u = MatMul(x, w)", set()),
    "biases": (f"{OWN} t = Gemm(x, w, b) a = Gemm(x, w, g){END}", {"Split"}),
    "one bias for all": (f"{OWN} t = Gemm(x, w, one) a = Gemm(x, w, b){END}", set()),
    "one for each row": (f"{OWN} t = Gemm(x, w, column) a = Gemm(x, w, b){END}", set()),
    "half a bias": (f"{OWN} t = Gemm<beta = 0.5>(x, w, b) a = Gemm(x, w, g){END}", set()),
}  # fmt: skip


@pytest.mark.parametrize(("body", "ops"), GRAPHS.values(), ids=GRAPHS)
def test_joined_nodes_give_the_same(body: str, ops: set[str]) -> None:
    model = parser.parse_model(f"{HEAD} => (float[3,4] t, float[3,4] u) <{VECTORS}> {{ {body} }}")
    rng = np.random.default_rng(5)
    feeds = {n: rng.standard_normal((3, 4), np.float32) for n in ("x", "z")}
    feeds["c"] = rng.standard_normal(4, np.float32)
    there = sardonyx.InferenceSession(model, providers=TORCH)
    names = " ".join(node.op.name for node, _, _ in there._compiled.program.nodes())
    assert all(op in names for op in ops), names
    want = sardonyx.InferenceSession(model).run(None, feeds)
    for got, expected in zip(there.run(None, feeds), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

"""Matrices of odd widths, whose rows are padded after the last column."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import sardonyx

torch = pytest.importorskip("torch")
from sardonyx.providers.torch import matmul as product  # noqa: E402 - torch may be missing

TORCH = [("TorchExecutionProvider", {"device": "cpu"})]


@pytest.mark.parametrize("is_transposed", [False, True])
def test_odd_widths(is_transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a constant [K, N], or as [N, K] with a Transpose, beside another node that reads it."""
    seen = []
    whole = product._with_padding_columns
    monkeypatch.setattr(
        product, "_with_padding_columns", lambda b: seen.append(whole(b)) or seen[-1]
    )
    k, n = 64, 1031
    w = (
        np.random.default_rng(0)
        .standard_normal((n, k) if is_transposed else (k, n))
        .astype(np.float32)
    )
    nodes = [helper.make_node("MatMul", ["x", "t" if is_transposed else "w"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", 1, None)]
    if is_transposed:
        nodes.insert(0, helper.make_node("Transpose", ["w"], ["t"]))
        nodes.append(helper.make_node("Gather", ["w", "i"], ["z"]))
        outputs.append(helper.make_tensor_value_info("z", 1, None))
    inputs = [helper.make_tensor_value_info("x", 1, [2, 3, k])]
    inputs += [helper.make_tensor_value_info("i", 7, [2])] if is_transposed else []
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    x = np.random.default_rng(1).standard_normal((2, 3, k)).astype(np.float32)
    feeds = {"x": x, **({"i": np.array([0, n - 1])} if is_transposed else {})}
    y, *rest = sardonyx.InferenceSession(model, providers=TORCH).run(None, feeds)
    np.testing.assert_allclose(y, x @ (w.T if is_transposed else w), rtol=1e-4, atol=1e-4)
    assert y.shape == (2, 3, n)
    assert seen[0].shape == (k, n + 1)
    for z in rest:
        np.testing.assert_array_equal(z, w[[0, n - 1]])

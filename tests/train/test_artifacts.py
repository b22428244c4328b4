"""Training and optimizer models as onnxruntime-training writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as f

import sardonyx
from sardonyx.errors import SardonyxError
from tests.train.test_training_ops import DY, RNG, X, close, gradients, numbers, op

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'


# As onnxruntime-training 1.19.2 writes them (generate_artifacts), with shorter names.
TRAINING = """g (float[batch,3,6,6] x, int64[batch] labels, float[6,3,3,3] w, float[6] b,
    float[4,6] h, float[6,3,3,3] w_sum, float[6] b_sum, float[4,6] h_sum, bool[1] reset)
    => (float loss, bool[1] w_done, bool[1] b_done, bool[1] h_done)
    <float one = {1}, float[1] area = {9}> {
    c = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, w, b)
    r = Relu (c)
    p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    s = Shape (p)
    g0 = GlobalAveragePool (p)
    t = Shape (g0)
    f = Flatten (g0)
    scores = Gemm <transB = 1> (f, h)
    loss, log_prob = SoftmaxCrossEntropyLoss <reduction = "mean"> (scores, labels)
    ds = com.microsoft.SoftmaxCrossEntropyLossGrad <reduction = "mean"> (one, log_prob, labels)
    dh = Gemm <transA = 1, beta = 0.0> (ds, f)
    df = Gemm <beta = 0.0> (ds, h)
    dg = Reshape (df, t)
    da = com.microsoft.Scale <scale_down = 1> (dg, area)
    dp = Expand (da, s)
    dr = MaxPoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (dp, i)
    dc = com.microsoft.ReluGrad (dr, c)
    "", dw, db = com.microsoft.ConvGrad <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (dc, x, w)
    w_done = com.microsoft.InPlaceAccumulatorV2 (w_sum, dw, reset)
    b_done = com.microsoft.InPlaceAccumulatorV2 (b_sum, db, reset)
    h_done = com.microsoft.InPlaceAccumulatorV2 (h_sum, dh, reset) }"""


ADAMW = """g (float[1] learning_rate, int64[1] step, seq(float[]) params, seq(float[]) gradients,
    seq(float[]) first_order_moments, seq(float[]) second_order_moments) => (bool[1] updated) {
    updated = com.microsoft.AdamWOptimizer <adam_mode = 1, alpha = 0.9, beta = 0.999,
        correct_bias = 1, epsilon = 1e-6, weight_decay = 0.0>
        (learning_rate, step, params, gradients, first_order_moments, second_order_moments) }"""


SGD = """g (float[1] learning_rate, int64[1] step, seq(float[]) params, seq(float[]) gradients)
    => (bool[1] updated) {
    updated = com.microsoft.SGDOptimizerV2 (learning_rate, params, gradients) }"""


def session_of(text: str) -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(onnx.parser.parse_model(f"{HEAD} {text}"))


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_artifacts_train(kind: str) -> None:
    """The buffers, weights and moments that are fed are updated."""
    training, optimizer = session_of(TRAINING), session_of(ADAMW if kind == "AdamW" else SGD)
    weights = {"w": numbers(6, 3, 3, 3), "b": numbers(6), "h": numbers(4, 6)}
    x, labels = numbers(5, 3, 6, 6), RNG.integers(0, 4, 5)
    leaves = {n: torch.tensor(a, requires_grad=True) for n, a in weights.items()}
    # Epsilon is added before the correction of the moment in one, and after it in the other.
    theirs: Any = torch.optim.SGD(leaves.values(), 0.01)
    if kind == "AdamW":
        theirs = torch.optim.AdamW(leaves.values(), 0.01, eps=1e-6, weight_decay=0.0)
    sums = {f"{n}_sum": np.full_like(a, np.nan) for n, a in weights.items()}
    moments = [[np.zeros_like(a) for a in weights.values()] for _ in range(2)]
    for step in range(1, 11):
        feeds = {"x": x, "labels": labels, "reset": np.array([True]), **weights, **sums}
        loss, *done = training.run(None, feeds)
        assert all(flag.all() for flag in done)
        theirs.zero_grad()
        pooled = f.max_pool2d(
            torch.relu(f.conv2d(torch.tensor(x), leaves["w"], leaves["b"], 1, 1)), 2
        )
        expected = f.cross_entropy(pooled.mean((2, 3)) @ leaves["h"].T, torch.tensor(labels))
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-4)
        expected.backward()
        theirs.step()
        feeds = {
            "learning_rate": np.float32([0.01]), "step": np.array([step]),
            "params": list(weights.values()), "gradients": list(sums.values()),
        }  # fmt: skip
        if kind == "AdamW":
            feeds |= dict(
                zip(("first_order_moments", "second_order_moments"), moments, strict=True)
            )
        assert optimizer.run(None, feeds)[0].all()
    for name, array in weights.items():
        np.testing.assert_allclose(array, leaves[name].detach(), atol=1e-3)


def test_gradients_are_accumulated() -> None:
    session = session_of(
        """g (float[n] total, float[n] value, bool[1] reset) => (bool[1] done, float[n] new) {
        done, new = com.microsoft.InPlaceAccumulatorV2 (total, value, reset) }"""
    )
    total, value = np.float32([1, 2]), np.float32([10, 20])
    for reset, expected in ((False, [11, 22]), (True, [10, 20]), (False, [20, 40])):
        _, new = session.run(None, {"total": total, "value": value, "reset": np.array([reset])})
        assert total.tolist() == new.tolist() == expected


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adamw_returns_new_sequences(mode: int, decay: float, dtype: Any) -> None:
    """With names for them; what is fed stays as it is."""
    kind = "float" if dtype is np.float32 else "double"
    session = session_of(
        f"""g (float[1] lr, int64[1] t, seq({kind}[]) w, seq({kind}[]) g0, seq({kind}[]) m,
        seq({kind}[]) v, bool[1] s) => (bool[1] f, seq({kind}[]) nw, seq({kind}[]) nm,
        seq({kind}[]) nv) {{ f, nw, nm, nv = com.microsoft.AdamWOptimizer <adam_mode = {mode},
        weight_decay = {decay}, epsilon = 0.1> (lr, t, w, g0, m, v, s) }}"""
    )
    shapes = ((4, 3), (5,))
    w, g, m = ([numbers(*s).astype(dtype) for s in shapes] for _ in range(3))
    v = [numbers(*s).astype(dtype) ** 2 for s in shapes]
    feeds = {"lr": np.float32([0.05]), "t": np.array([3]), "w": w, "g0": g, "m": m, "v": v}
    before = [a.copy() for a in w]
    flag, *found = session.run(None, feeds | {"s": np.array([True])})
    assert flag.all()
    beta1, beta2 = np.float32(0.9), np.float32(0.999)
    for i in range(2):
        mean = beta1 * m[i] + (1 - beta1) * g[i]
        square = beta2 * v[i] + (1 - beta2) * g[i] ** 2
        root = np.sqrt(1 - float(beta2) ** 3)
        rate = 0.05 / (1 - float(beta1) ** 3)
        if mode == 0:
            moved = rate * mean / (np.sqrt(square) / root + 0.1)
            weight = w[i] * (1 - 0.05 * decay) - moved
        else:
            weight = (w[i] - rate * root * mean / (np.sqrt(square) + 0.1)) * (1 - 0.05 * decay)
        close([found[0][i], found[1][i], found[2][i]], [weight, mean, square], 1e-6)
        np.testing.assert_array_equal(w[i], before[i])
    flag, *found = session.run(None, feeds | {"s": np.array([False])})
    assert not flag.any()
    close(found[0], before)


def test_clipping_a_sequence() -> None:
    session = session_of(
        """g (seq(float[]) x) => (seq(float[]) y) {
        y = com.microsoft.InplaceClipGradNorm <max_norm = 2.0, norm_type = "fro"> (x) }"""
    )
    grads = [numbers(4, 3), numbers(5)]
    leaves = [torch.tensor(g) for g in grads]
    for leaf, grad in zip(leaves, grads, strict=True):
        leaf.grad = torch.tensor(grad)
    torch.nn.utils.clip_grad_norm_(leaves, 2.0)
    (found,) = session.run(None, {"x": grads})
    close(found, [leaf.grad.numpy() for leaf in leaves if leaf.grad is not None])


def test_tensors_of_an_update_must_match() -> None:
    feeds = {"learning_rate": np.float32([1]), "step": np.array([1])}
    pair = {"params": [numbers(3)], "gradients": [numbers(4)]}
    with pytest.raises(SardonyxError, match=r"gradient 0 of SGDSequences is float32\[4\]"):
        session_of(SGD).run(None, feeds | pair)
    pair = {"params": [numbers(3)], "gradients": []}
    with pytest.raises(SardonyxError, match="0 gradients and 1 tensors"):
        session_of(SGD).run(None, feeds | pair)


def test_old_optimizers() -> None:
    weight, step = op("SGDOptimizer", np.float32(0.1), X, DY, n_outputs=2)
    close([weight, step], [X - np.float32(0.1) * DY, -np.float32(0.1) * DY])
    close(op("InPlaceAccumulator", X, DY), [X + DY])
    close(op("InPlaceAccumulator", X, DY, np.array(False)), [X])
    a, b, dy = numbers(4, 3), 1 + numbers(3) ** 2, numbers(4, 3)
    close(op("DivGrad", dy, a, b, n_outputs=2), gradients(lambda x, y: x / y, dy, a, b))

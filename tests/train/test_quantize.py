"""Straight-through gradients of quantization against those of torch's fake quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.train import gradient

torch = pytest.importorskip("torch")

Array = np.ndarray[Any, np.dtype[Any]]
RANGES = {
    "INT2": (-2, 1), "UINT2": (0, 3), "INT4": (-8, 7), "UINT4": (0, 15), "INT8": (-128, 127),
    "UINT8": (0, 255), "INT16": (-32768, 32767), "UINT16": (0, 65535),
}  # fmt: skip


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(
    nodes: list[Any], inputs: dict[str, tuple[int, ...]], weights: dict[str, Any] | None = None
) -> Any:
    """A model of one output y; weights are arrays or tensors."""
    tensors = [
        numpy_helper.from_array(w, n) if isinstance(w, np.ndarray) else w
        for n, w in (weights or {}).items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, 1, shape) for n, shape in inputs.items()],
        [onnx.ValueInfoProto(name="y")],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def pair(x: Array, scale: Array, zero: Any, domain: str = "", **attrs: Any) -> dict[str, Array]:
    """Results of QuantizeLinear and DequantizeLinear with gradients by x and by the scale."""
    names = ["scale", "zero"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *names], ["q"], domain=domain, **attrs),
        helper.make_node("DequantizeLinear", ["q", *names], ["y"], domain=domain, **attrs),
    ]
    model = model_of(nodes, {"x": x.shape}, {"scale": scale, "zero": zero})
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    made = gradient(model, "y", ["x", "scale"], seeds=True)
    session = sardonyx.InferenceSession(made)
    y, *grads = session.run(None, {"x": x, "y_grad": numbers(*x.shape, seed=1)})
    return {"y": y, "x": grads[0], "scale": grads[1]}


def zeros(kind: str, values: Any) -> Any:
    """A tensor of zero points."""
    flat = np.asarray(values)
    return helper.make_tensor("zero", getattr(TensorProto, kind), flat.shape, flat.reshape(-1))


def check(found: dict[str, Array], y: Any, x: Any, scale: Any = None) -> None:
    """Compare with torch, whose graph leads from x and the scale to y."""
    y.backward(torch.tensor(numbers(*y.shape, seed=1)))
    np.testing.assert_allclose(found["y"], y.detach().numpy(), 1e-6, 1e-7)
    np.testing.assert_allclose(found["x"], x.grad.numpy(), 1e-6, 1e-7)
    assert (found["x"] == 0).any(), "nothing is clipped"
    if scale is not None:
        size = np.abs(scale.grad.numpy()).max()
        np.testing.assert_allclose(found["scale"], scale.grad.numpy(), 1e-5, 1e-5 * size)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("kind", RANGES)
def test_per_tensor(kind: str, domain: str) -> None:
    if domain and "2" in kind:
        pytest.skip("not a type of this domain")
    low, high = RANGES[kind]
    zero = (low + high) // 2 + 1
    values, step = numbers(6, 7), np.float32(2.2 / (high - low))
    found = pair(values, np.array(step), zeros(kind, zero), domain)
    x = torch.tensor(values, requires_grad=True)
    check(found, torch.fake_quantize_per_tensor_affine(x, float(step), zero, low, high), x)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("kind", ["INT4", "INT8", "UINT8"])
def test_per_axis(kind: str, axis: int) -> None:
    low, high = RANGES[kind]
    values = numbers(3, 4, 5)
    count = values.shape[axis]
    steps = (3 + np.arange(count, dtype=np.float32)) / (high - low) / 2
    zero = np.arange(count) + (low + high) // 2
    found = pair(values, steps, zeros(kind, zero), axis=axis)
    x, scale = torch.tensor(values, requires_grad=True), torch.tensor(steps, requires_grad=True)
    y = torch._fake_quantize_learnable_per_channel_affine(
        x, scale, torch.tensor(zero, dtype=torch.float32), axis % 3, low, high, 1.0
    )
    check(found, y, x, scale)


def test_the_step_size_is_learned() -> None:
    values, step = numbers(6, 7), np.float32(0.1)
    found = pair(values, np.array(step), zeros("INT4", 1))
    x = torch.tensor(values, requires_grad=True)
    scale = torch.tensor([step], requires_grad=True)
    y = torch._fake_quantize_learnable_per_tensor_affine(x, scale, torch.ones(1), -8, 7, 1.0)
    check(found, y, x, scale)


@pytest.mark.parametrize(("axis", "block"), [(0, 2), (1, 3), (1, 4), (1, 16)])
def test_per_block(axis: int, block: int) -> None:
    """Each element has the gradient of a pair with its own scale; scales sum over their block."""
    values = numbers(4, 6)
    n = -(-values.shape[axis] // block)
    shape = (n, 6) if axis == 0 else (4, n)
    steps = np.abs(numbers(*shape, seed=2)) / 8 + 0.05
    found = pair(values, steps, zeros("INT4", np.zeros(shape, int)), axis=axis, block_size=block)
    x, scale = torch.tensor(values, requires_grad=True), torch.tensor(steps, requires_grad=True)
    index = torch.arange(values.shape[axis]) // block
    wide = scale.index_select(axis, index).reshape(-1)
    y = torch._fake_quantize_learnable_per_channel_affine(
        x.reshape(24, 1), wide, torch.zeros(24), 0, -8, 7, 1.0
    ).reshape(4, 6)
    check(found, y, x, scale)


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1"])
def test_float8_and_float4(kind: str) -> None:
    limit = {"FLOAT8E4M3FN": 448.0, "FLOAT8E5M2": 57344.0, "FLOAT4E2M1": 6.0}[kind]
    values, step = numbers(6, 7), np.float32(1.1 / limit)
    found = pair(values, np.array(step), zeros(kind, 0.0))
    seed = numbers(6, 7, seed=1)
    inside = np.abs(values / step) <= limit
    assert not inside.all()
    np.testing.assert_allclose(found["x"], np.where(inside, seed, 0), 1e-6)
    whole = (found["y"] - np.where(inside, values, 0)) / step
    np.testing.assert_allclose(found["scale"], np.sum(whole * seed), 1e-4)


def test_a_range_that_is_observed() -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    made = gradient(model_of(nodes, {"x": (6, 7)}), "y", ["x"], seeds=True)
    values, seed = numbers(6, 7), numbers(6, 7, seed=1)
    _, grad = sardonyx.InferenceSession(made).run(None, {"x": values, "y_grad": seed})
    step = (values.max() - values.min()) / 255
    number = np.rint(values / step) + np.rint(-values.min() / step)
    np.testing.assert_allclose(grad, np.where((number >= 0) & (number <= 255), seed, 0), 1e-6)


def test_a_range_that_is_reduced() -> None:
    """Exporters write 7 bits as 8 bits and a Clip, and may move elements before dequantizing."""
    values = numbers(6, 7)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("Clip", ["q", "low", "high"], ["c"]),
        helper.make_node("Transpose", ["c"], ["t"]),
        helper.make_node("DequantizeLinear", ["t", "s", "z"], ["y"]),
    ]
    weights = {"s": np.array(np.float32(0.02)), "z": np.array(3, np.int8)}
    weights |= {"low": np.array(-64, np.int8), "high": np.array(63, np.int8)}
    made = gradient(model_of(nodes, {"x": (6, 7)}, weights), "y", ["x"], seeds=True)
    session = sardonyx.InferenceSession(made)
    y, grad = session.run(None, {"x": values, "y_grad": numbers(7, 6, seed=1)})
    x = torch.tensor(values, requires_grad=True)
    check({"y": y, "x": grad}, torch.fake_quantize_per_tensor_affine(x, 0.02, 3, -64, 63).T, x)


# Quantization-aware training: weights per channel in 4 bits, activations in 8 bits. With powers of
# two as scales, division and torch's product with the inverse round alike.
W_STEP = [np.float32(0.5) ** (3 + np.arange(n) % 2).astype(np.float32) for n in (16, 3)]
X_STEP = 1 / 32


def _linear(i: int, x: str, out: str) -> list[Any]:
    """A linear layer whose weight and input are quantized."""
    names = [f"ws{i}", f"wz{i}"]
    return [
        helper.make_node("QuantizeLinear", [f"w{i}", *names], [f"wq{i}"], axis=1),
        helper.make_node("DequantizeLinear", [f"wq{i}", *names], [f"wd{i}"], axis=1),
        helper.make_node("QuantizeLinear", [x, "xs", "xz"], [f"xq{i}"]),
        helper.make_node("DequantizeLinear", [f"xq{i}", "xs", "xz"], [f"xd{i}"]),
        helper.make_node("Gemm", [f"xd{i}", f"wd{i}", f"b{i}"], [out]),
    ]


def test_quantization_aware_training() -> None:
    trained = {
        "w0": numbers(8, 16) * np.float32(0.4), "b0": np.zeros(16, np.float32),
        "w1": numbers(16, 3, seed=3) * np.float32(0.4), "b1": np.zeros(3, np.float32),
    }  # fmt: skip
    fixed: dict[str, Any] = {"xs": np.array(np.float32(X_STEP)), "xz": np.array(0, np.int8)}
    for i, step in enumerate(W_STEP):
        fixed[f"ws{i}"] = step
        zero = helper.make_tensor(f"wz{i}", TensorProto.INT4, step.shape, [0] * len(step))
        fixed[f"wz{i}"] = zero
    nodes = [
        *_linear(0, "x", "h"),
        helper.make_node("Relu", ["h"], ["r"]),
        *_linear(1, "r", "scores"),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["y"]),
    ]
    model = model_of(nodes, {"x": (32, 8)}, trained | fixed)
    model.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.INT64, [32]))
    session = sardonyx.InferenceSession(gradient(model))
    assert [o.name for o in session.get_outputs()][1:] == [
        "w0_grad",
        "b0_grad",
        "w1_grad",
        "b1_grad",
    ]
    x = numbers(32, 8, seed=5)
    labels = np.argmax(x[:, :3] + x[:, 3:6], 1)
    ours = _losses_here(session, dict(trained), x, labels)
    theirs = _losses_of_torch(trained, x, labels)
    np.testing.assert_allclose(ours, theirs, 1e-5)
    assert ours[-1] < 0.5 * ours[0]


N_STEPS = 60


def _losses_here(session: Any, weights: dict[str, Array], x: Array, labels: Array) -> list[float]:
    losses = []
    for _ in range(N_STEPS):
        loss, *grads = session.run(None, {"x": x, "labels": labels, **weights})
        for name, grad in zip(("w0", "b0", "w1", "b1"), grads, strict=True):
            weights[name] = weights[name] - np.float32(0.2) * grad
        losses.append(float(loss))
    return losses


def _losses_of_torch(start: dict[str, Array], x: Array, labels: Array) -> list[float]:
    weights = {n: torch.tensor(w, requires_grad=True) for n, w in start.items()}
    losses = []
    for _ in range(N_STEPS):
        h = torch.tensor(x)
        for i, step in enumerate(W_STEP):
            w = torch.fake_quantize_per_channel_affine(
                weights[f"w{i}"], torch.tensor(step), torch.zeros(len(step), dtype=torch.int32),
                1, -8, 7,
            )  # fmt: skip
            x8 = torch.fake_quantize_per_tensor_affine(h, X_STEP, 0, -128, 127)
            h = x8 @ w + weights[f"b{i}"]
            h = h.relu() if i == 0 else h
        loss = torch.nn.functional.cross_entropy(h, torch.tensor(labels))
        grads = torch.autograd.grad(loss, list(weights.values()))
        for weight, grad in zip(weights.values(), grads, strict=True):
            weight.data -= 0.2 * grad
        losses.append(float(loss.detach()))
    return losses

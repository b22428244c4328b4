"""Gradient ops of onnxruntime-training, against torch's autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as f
from onnx import helper

import sardonyx
from sardonyx.errors import InvalidGraph

Array = Any


RNG = np.random.default_rng(0)


FIXED = ("w", "r", "b")  # weights of recurrent layers


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def run(nodes: Sequence[Any], feeds: dict[str, Array], outputs: Sequence[str]) -> list[Array]:
    """Run nodes; sizes are symbolic but those of images, convolutions' weights and shapes."""
    inputs = []
    for n, a in feeds.items():
        is_fixed = a.ndim == 4 or n in FIXED or a.dtype == np.int64
        dims = a.shape if is_fixed else [f"{n}{i}" for i in range(a.ndim)]
        kind = helper.np_dtype_to_tensor_dtype(a.dtype)
        inputs.append(helper.make_tensor_value_info(n, kind, dims))
    made = [onnx.ValueInfoProto(name=n) for n in outputs]
    graph = helper.make_graph(nodes, "g", inputs, made)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = sardonyx.InferenceSession(model.SerializeToString())
    found: list[Array] = session.run(None, feeds)
    return found


def op(name: str, *inputs: Array | None, n_outputs: int = 1, **attrs: Any) -> list[Array]:
    """Run one node of com.microsoft."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(n_outputs)]
    node = helper.make_node(name, names, outputs, domain="com.microsoft", **attrs)
    return run([node], {n: a for n, a in zip(names, inputs, strict=True) if n}, outputs)


def gradients(function: Callable[..., Any], dy: Array, *xs: Array) -> list[Array]:
    """Return torch's gradients."""
    leaves = [torch.tensor(x, requires_grad=True) for x in xs]
    y = function(*leaves)
    grads = torch.autograd.grad(y, leaves, torch.tensor(dy).reshape(y.shape))
    return [g.numpy() for g in grads]


def close(found: Sequence[Array], expected: Sequence[Array], atol: float = 2e-5) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=1e-4)


X, DY = numbers(3, 4, 5), numbers(3, 4, 5)


ACTIVATIONS: dict[str, tuple[Callable[..., Any], bool, dict[str, Any]]] = {
    "ReluGrad": (torch.relu, False, {}),
    "TanhGrad": (torch.tanh, True, {}),
    "SigmoidGrad": (torch.sigmoid, True, {}),
    "LeakyReluGrad": (lambda x: f.leaky_relu(x, 0.2), True, {"alpha": 0.2}),
    "GeluGrad": (f.gelu, False, {}),
    "FastGeluGrad": (lambda x: f.gelu(x, approximate="tanh"), False, {}),
    "QuickGeluGrad": (lambda x: x * torch.sigmoid(1.5 * x), False, {"alpha": 1.5}),
    "SoftmaxGrad_13": (lambda x: torch.softmax(x, 1), True, {"axis": 1}),
    "LogSoftmaxGrad_13": (lambda x: torch.log_softmax(x, -1), True, {}),
    "SoftmaxGrad": (lambda x: torch.softmax(x.flatten(1), 1), True, {}),
    "LogSoftmaxGrad": (lambda x: torch.log_softmax(x.flatten(1), 1), True, {"axis": 1}),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    function, takes_result, attrs = ACTIVATIONS[name]
    result = function(torch.tensor(X)).numpy().reshape(X.shape)
    close(op(name, DY, result if takes_result else X, **attrs), gradients(function, DY, X))


@pytest.mark.parametrize("kind", ["none", "tanh"])
def test_gelu_with_a_bias(kind: str) -> None:
    bias = numbers(5)
    name = "BiasGeluGrad_dX" if kind == "none" else "BiasFastGeluGrad_dX"
    expected = gradients(lambda x: f.gelu(x + torch.tensor(bias), approximate=kind), DY, X)
    close(op(name, DY, X, bias), expected)


@pytest.mark.parametrize("ignored", [None, 2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_cross_entropy(reduction: str, ignored: int | None, is_weighted: bool) -> None:
    scores, labels = numbers(4, 3, 2), RNG.integers(0, 3, (4, 2))
    weights = np.float32([0.5, 2, 1]) if is_weighted else None
    options: dict[str, Any] = {"reduction": reduction}
    if ignored is not None:
        options["ignore_index"] = ignored

    def loss(x: Any) -> Any:
        w = None if weights is None else torch.tensor(weights)
        return f.cross_entropy(x, torch.tensor(labels), w, **options)

    value = loss(torch.tensor(scores)).numpy()
    log_prob = torch.log_softmax(torch.tensor(scores), 1).numpy()
    dy = numbers(*value.shape)
    expected = gradients(loss, dy, scores)
    close(op("SoftmaxCrossEntropyLossGrad", dy, log_prob, labels, weights, **options), expected)
    options.pop("ignore_index", None)
    names = ["scores", "labels", "weights" if is_weighted else "", "ignored" if ignored else ""]
    nodes = [
        helper.make_node("Constant", [], ["ignored"], value_int=ignored or 0),
        helper.make_node(
            "SoftmaxCrossEntropyLossInternal", names, ["loss", "log_prob"],
            domain="com.microsoft", **options,
        ),
        helper.make_node(
            "SoftmaxCrossEntropyLossInternalGrad", ["dy", "log_prob", *names[1:]], ["dx"],
            domain="com.microsoft", **options,
        ),
    ]  # fmt: skip
    feeds = {"scores": scores, "labels": labels, "dy": dy}
    feeds |= {} if weights is None else {"weights": weights}
    close(run(nodes, feeds, ["loss", "log_prob", "dx"]), [value, log_prob, *expected])


def test_gathers_and_slices() -> None:
    x, shape = numbers(4, 5), np.array([4, 5])
    rows, dy = np.array([[0, 3], [3, 3]]), numbers(2, 2, 5)
    close(op("GatherGrad", shape, rows, dy, axis=0), gradients(lambda v: v[rows], dy, x))
    at, dy = RNG.integers(0, 5, (4, 3)), numbers(4, 3)
    expected = gradients(lambda v: v.gather(1, torch.tensor(at)), dy, x)
    close(op("GatherElementsGrad", dy, shape, at, axis=1), expected)
    where, dy = np.array([[0, 1], [3, 4], [0, 1]]), numbers(3)
    expected = gradients(lambda v: v[where[:, 0], where[:, 1]], dy, x)
    close(op("GatherNDGrad", shape, where, dy), expected)
    dy = numbers(2, 2)
    bounds = {"starts": [1, 0], "ends": [3, 4], "axes": [0, 1], "steps": [1, 2]}
    nodes = [helper.make_node("Constant", [], [n], value_ints=v) for n, v in bounds.items()]
    inputs = ["dy", "shape", *bounds]
    nodes.append(helper.make_node("SliceGrad", inputs, ["dx"], domain="com.microsoft"))
    found = run(nodes, {"dy": dy, "shape": shape}, ["dx"])
    close(found, gradients(lambda v: v[1:3, 0:4:2], dy, x))


def test_movement() -> None:
    a, b = numbers(2, 3), numbers(2, 1)
    joined, sizes = op("ConcatTraining", a, b, n_outputs=2, axis=-1)
    np.testing.assert_array_equal(joined, np.concatenate([a, b], 1))
    assert sizes.tolist() == [3, 1]
    first, second = op("SplitTraining", joined, np.array([1, 3]), n_outputs=2, axis=1)
    np.testing.assert_array_equal(np.concatenate([first, second], 1), joined)
    x, rows = numbers(3, 2), np.array([5, 0, 2])
    (found,) = op("PadAndUnflatten", x, rows, np.array([2, 3]))
    expected = np.zeros((6, 2), np.float32)
    expected[rows] = x
    np.testing.assert_array_equal(found, expected.reshape(2, 3, 2))


AXES = [
    ((2, 16, 1024, 1024), (1, 1, 1024, 1024), [], [1, 0]),
    ((2, 3), (3,), [], [0]),
    ((3,), (2, 3), [0], []),
    ((2, 1), (1, 5), [1], [0]),
    ((1, 3), (3,), [], [0]),
    ((4, 5), (4, 5), [], []),
    ((), (2, 1), [1, 0], []),
]


@pytest.mark.parametrize(("a", "b", "a_axes", "b_axes"), AXES)
def test_axes_that_broadcast(a: Any, b: Any, a_axes: list[int], b_axes: list[int]) -> None:
    shapes = (np.array(s, np.int64) for s in (a, b))
    found = op("BroadcastGradientArgs", *shapes, n_outputs=2)
    assert [v.tolist() for v in found] == [a_axes, b_axes]


def test_sums_and_scales() -> None:
    (total,) = op("ReduceSumTraining", X, np.array([0, 2]), keepdims=0)
    close([total], [X.sum((0, 2))])
    (norm,) = op("ReduceAllL2", X, DY)
    close([norm], [np.sqrt((X**2).sum() + (DY**2).sum())])
    close(op("Scale", X, np.array(4), scale_down=1), [X / 4])
    close(op("Scale", X, np.float32([4])), [X * 4])
    close(op("ScaledSum", X, DY, scale_0=0.5, scale_1=2.0), [0.5 * X + 2 * DY])
    close(op("BatchScale", X, n_outputs=2, scale_0=0.5, scale_1=2.0), [0.5 * X, 2 * X])
    half = op("MixedPrecisionScale", np.float32(3), X, DY, n_outputs=2, to=10)
    assert [h.dtype for h in half] == [np.dtype(np.float16)] * 2
    close(half, [X * 3, DY * 3], 0.01)
    odd = np.float32([1, np.nan, np.inf, -np.inf])
    assert op("IsFinite", odd)[0].tolist() == [True, False, False, False]
    close(op("PassThrough", X, DY, n_outputs=2), [X, DY])
    assert op("Group", X, DY)[0].all()
    close(op("ZeroGradient", X, np.array(True)), [np.zeros_like(X)])


def test_dropout() -> None:
    keep, ratio, yes = RNG.random(X.shape) > 0.3, np.float32(0.3), np.array(True)
    expected = [np.where(keep, DY / np.float32(0.7), 0)]
    close(op("DropoutGrad", DY, keep, ratio, yes), expected)
    close(op("DropoutGrad", DY, keep, ratio, ~yes), [DY])
    close(op("DropoutGrad", DY, keep), [DY])
    padded = np.concatenate([keep.reshape(-1), np.zeros(-keep.size % 32, bool)])
    bits = np.packbits(padded, bitorder="little").view(np.uint32)
    close(op("BitmaskDropoutGrad", DY, bits, ratio, yes), expected)


@pytest.mark.parametrize("axis", [-1, 1, -2])
def test_layer_norms(axis: int) -> None:
    shape = X.shape[axis:]
    scale, bias = 1 + numbers(*shape), numbers(*shape)
    axes = tuple(range(len(X.shape))[axis:])
    mean = X.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(X.var(axes, keepdims=True) + np.float32(1e-5))
    expected = gradients(lambda x, s, b: f.layer_norm(x, shape, s, b), DY, X, scale, bias)
    close(
        op("LayerNormalizationGrad", DY, X, scale, mean, inverse, n_outputs=3, axis=axis), expected
    )
    y = f.layer_norm(*(torch.tensor(v) for v in (X,)), shape, *map(torch.tensor, (scale, bias)))
    close(
        op(
            "InvertibleLayerNormalizationGrad", DY, y.numpy(), scale, bias, inverse, n_outputs=3,
            axis=axis,
        ),
        expected, 1e-3,
    )  # fmt: skip
    rms = 1 / np.sqrt((X**2).mean(axes, keepdims=True) + np.float32(1e-5))
    expected = gradients(lambda x, s: f.rms_norm(x, shape, s, 1e-5), DY, X, scale)
    close(
        op("SimplifiedLayerNormalizationGrad", DY, X, scale, rms, n_outputs=2, axis=axis), expected
    )


def test_batch_norms() -> None:
    x, dy = numbers(4, 3, 5, 2), numbers(4, 3, 5, 2)
    scale, bias, mean, variance = 1 + numbers(3), numbers(3), numbers(3), 1 + numbers(3) ** 2

    def norm(v: Any, s: Any, b: Any) -> Any:
        return f.batch_norm(v, None, None, s, b, training=True)

    expected = norm(*map(torch.tensor, (x, scale, bias))).numpy()
    batch_mean, batch_var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    y, new_mean, new_var, saved, inverse = op(
        "BatchNormInternal", x, scale, bias, mean, variance, n_outputs=5, momentum=0.8
    )
    close([y, saved, inverse], [expected, batch_mean, 1 / np.sqrt(batch_var + 1e-5)])
    close([new_mean, new_var], [0.8 * mean + 0.2 * batch_mean, 0.8 * variance + 0.2 * batch_var])
    found = op("BatchNormalizationGrad", dy, x, scale, saved, inverse, n_outputs=3, epsilon=1e-5)
    close(found, gradients(norm, dy, x, scale, bias), 1e-4)


CONVOLUTIONS: list[dict[str, Any]] = [
    {},
    {"strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"dilations": [2, 1], "group": 2},
]


@pytest.mark.parametrize("attrs", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_convolutions(attrs: dict[str, Any], is_transposed: bool) -> None:
    group = attrs.get("group", 1)
    x, bias = numbers(2, 4, 9, 8), numbers(6)
    w = numbers(4, 6 // group, 3, 3) if is_transposed else numbers(6, 4 // group, 3, 3)
    options = {
        "stride": attrs.get("strides", 1), "padding": 1 if "pads" in attrs else 0,
        "dilation": attrs.get("dilations", 1), "groups": group,
    }  # fmt: skip
    function = f.conv_transpose2d if is_transposed else f.conv2d

    def conv(v: Any, w: Any, b: Any) -> Any:
        return function(v, w, b, **options)

    dy = numbers(*conv(*map(torch.tensor, (x, w, bias))).shape)
    name = "ConvTransposeGrad" if is_transposed else "ConvGrad"
    found = op(name, dy, x, w, n_outputs=3, kernel_shape=[3, 3], **attrs)
    close(found, gradients(conv, dy, x, w, bias), 1e-4)


def test_pools() -> None:
    x = numbers(2, 3, 8, 7)
    dy = numbers(*f.max_pool2d(torch.tensor(x), 3, 2, 1).shape)
    nodes = [
        helper.make_node(
            "MaxPool", ["x"], ["y", "i"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
        ),
        helper.make_node("MaxPoolGrad", ["dy", "i"], ["dx"], domain="com.microsoft"),
    ]
    found = run(nodes, {"x": x, "dy": dy}, ["dx"])
    close(found, gradients(lambda v: f.max_pool2d(v, 3, 2, 1), dy, x))
    x = numbers(2, 3, 9, 7)
    dy = numbers(*f.avg_pool2d(torch.tensor(x), 3, 2).shape)
    found = op("AveragePoolGrad", dy, kernel_shape=[3, 3], strides=[2, 2])
    close(found, gradients(lambda v: f.avg_pool2d(v, 3, 2), dy, x))
    with pytest.raises(InvalidGraph, match="are not those of a MaxPool"):
        op("MaxPoolGrad", dy, np.zeros(dy.shape, np.int64))


def test_resize() -> None:
    x, dy = numbers(1, 2, 4, 5), numbers(1, 2, 8, 10)
    scales = np.float32([1, 1, 2, 2])
    found = op(
        "ResizeGrad",
        dy,
        x,
        None,
        scales,
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    expected = gradients(
        lambda v: f.interpolate(v, scale_factor=2, mode="bilinear", align_corners=False), dy, x
    )
    close(found, expected)


# How torch orders the gates that ONNX has as input, output, forget, cell or update, reset, hidden.
ORDERS = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}


def torch_layer(kind: str, reverse: bool) -> Callable[..., Any]:
    """A layer of torch as a function of ONNX's inputs; it returns all states, and the last."""

    def layer(x: Any, w: Any, r: Any, b: Any, h: Any, c: Any = None) -> tuple[Any, ...]:
        order, hidden = ORDERS[kind], r.shape[2]
        both = b[0].chunk(2)
        weights = [torch.cat([v.chunk(len(order))[i] for i in order]) for v in (w[0], r[0], *both)]
        state = h if c is None else (h, c)
        x = x.flip(0) if reverse else x
        function = torch.lstm if kind == "LSTM" else torch.gru
        y, *last = function(x, state, weights, True, 1, 0.0, False, False, False)
        assert y.shape[-1] == hidden
        y = y.flip(0) if reverse else y
        return y[:, None], *last

    return layer


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers(kind: str, direction: str) -> None:
    length, batch, width, hidden = 5, 3, 4, 6
    n = len(ORDERS[kind]) * hidden
    given = {
        "x": numbers(length, batch, width), "w": numbers(1, n, width), "r": numbers(1, n, hidden),
        "b": numbers(1, 2 * n), "h": numbers(1, batch, hidden),
    }  # fmt: skip
    dys = {"dy": numbers(length, 1, batch, hidden), "dh": numbers(1, batch, hidden)}
    if kind == "LSTM":
        given["c"], dys["dc"] = numbers(1, batch, hidden), numbers(1, batch, hidden)
    saved = ["y", "cells", "gates"] if kind == "LSTM" else ["y", "gates"]
    made = ["y", "yh", "yc", "cells", "gates"] if kind == "LSTM" else ["y", "yh", "gates"]
    state = ["h", "c"] if kind == "LSTM" else ["h"]
    bias = [] if kind == "LSTM" else ["b"]
    grads = [f"d_{n}" for n in given]
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    attrs |= {"linear_before_reset": 1} if kind == "GRU" else {}
    inputs = ["x", "w", "r", *bias, "", *state, *saved, *dys]
    nodes = [
        helper.make_node(
            f"{kind}Training", ["x", "w", "r", "b", "", *state], made, domain="com.microsoft",
            **attrs,
        ),
        helper.make_node(f"{kind}Grad", inputs, grads, domain="com.microsoft", **attrs),
    ]  # fmt: skip
    leaves = {n: torch.tensor(v, requires_grad=True) for n, v in given.items()}
    results = torch_layer(kind, direction == "reverse")(*leaves.values())
    expected = torch.autograd.grad(
        results, list(leaves.values()), [torch.tensor(d) for d in dys.values()]
    )
    found = run(nodes, given | dys, [*made[: len(results)], *grads])
    close(found, [v.detach().numpy() for v in (*results, *expected)], 1e-4)


def test_recurrent_layers_without_kernels() -> None:
    arrays = (numbers(5, 3, 4), numbers(2, 24, 4), numbers(2, 24, 6))
    with pytest.raises(InvalidGraph, match="two directions, or other activations"):
        op("LSTMTraining", *arrays, direction="bidirectional", hidden_size=6)

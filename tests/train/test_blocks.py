"""Whole models: recompute and orders change no bit, saved graphs run elsewhere, torch agrees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.load import load
from sardonyx.save import SaveOptions, save
from sardonyx.train import SGD, TrainingStep, gradient
from tests.train import models

Feeds = dict[str, Any]
_RNG = np.random.default_rng(3)


def _ints(high: int, *shape: int) -> Any:
    return _RNG.integers(0, high, shape)


TEXT: Feeds = {"tokens": _ints(11, 3, 7), "labels": _ints(11, 3, 7)}
IMAGE: Feeds = {
    "image": _RNG.standard_normal((3, 3, 17, 16)).astype(np.float32),
    "labels": _ints(4, 3),
}
WORDS: Feeds = {"tokens": _ints(11, 7, 3), "labels": _ints(4, 3)}

# name: the model and its weights, what to feed, and what torch makes of weights and feeds.
NETS: dict[str, tuple[Callable[[], Any], Feeds, Callable[..., Any]]] = {
    "transformer": (models.transformer, TEXT, lambda n, w, x: n.transformer(w, x, 2, 2)),
    "images": (models.image_net, IMAGE, lambda n, w, x: n.image_net(w, x)),
    **{
        kind: (
            functools.partial(models.recurrent_net, kind),
            WORDS,
            lambda n, w, x, kind=kind: n.recurrent_net(w, x, kind),
        )
        for kind in ("RNN", "GRU", "LSTM")
    },
}
CHOICES: dict[str, Any] = {
    "layers": "layers",
    "all": lambda node: True,
    "some": lambda node: node.op.name in ("Gelu", "Relu", "LayerNormalization", "Gather"),
}


# A Gelu and a LayerNormalization as exporters write them, each node with a name but the last.
SPELLED = """<ir_version: 10, opset_import: ["": 21]>
    g (float[4, 8] x) => (float loss)
      <float root = {1.4142135}, float one = {1}, float half = {0.5},
       float two = {2}, float small = {0.00001}, int64[1] axes = {-1}> {
    [product] a = MatMul(x, w)
    [scale] q = Div(a, root) [erf] r = Erf(q) [shift] s = Add(r, one) [gate] t = Mul(a, s)
    u = Mul(t, half)
    [mean] m = ReduceMean(u, axes) [centre] c = Sub(u, m) [square] p = Pow(c, two)
    [variance] v = ReduceMean(p, axes) [inside] e = Add(v, small) [deviation] d = Sqrt(e)
    [normal] n = Div(c, d) [scaled] f = Mul(n, g) [shifted] h = Add(f, b)
    o = MatMul(h, w) loss = ReduceSumSquare<keepdims = 0>(o) }"""


@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("names", [["product"], ["erf", "normal"], ["gate"], ["shifted"]], ids=str)
def test_recomputed_names_change_no_bit_of_a_step(names: list[str], precision: Any) -> None:
    model = onnx.parser.parse_model(SPELLED)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 8)), ("g", 8), ("b", 8)):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    x = rng.standard_normal((4, 8)).astype(np.float32)
    options = {"optimizer": SGD(1e-3), "mixed_precision": precision}
    plain = TrainingStep(model, **options)
    again = TrainingStep(model, recompute=names, **options)
    for _ in range(3):
        assert plain.run({"x": x})["loss"] == again.run({"x": x})["loss"]
    same(again.parameters, plain.parameters)
    assert any(n.priority > 0 for n in again.session._compiled.model.graph.nodes)


def test_a_name_to_recompute_that_the_step_lacks() -> None:
    proto, _ = models.transformer()
    with pytest.raises(InvalidArgument, match="recompute names 'gelu'"):
        TrainingStep(proto, recompute=["gelu"])


@functools.cache
def made(name: str, recompute: str = "") -> Any:
    proto, _ = NETS[name][0]()
    return gradient(proto, "loss", recompute=CHOICES.get(recompute))


def results(model: Any, feeds: Feeds, **entries: str) -> dict[str, Any]:
    options = sardonyx.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(f"sardonyx.{key}", value)
    session = sardonyx.InferenceSession(model, options)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("name", NETS)
def test_torch_agrees(name: str) -> None:
    torch = pytest.importorskip("torch")
    from tests.train import torch_nets

    (make, feeds, run), found = NETS[name], results(made(name), NETS[name][1])
    weights = {n: torch.tensor(w, requires_grad=True) for n, w in make()[1].items()}
    loss = run(torch_nets, weights, {n: torch.tensor(x) for n, x in feeds.items()})
    loss.backward()
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-5)
    for weight, tensor in weights.items():
        if tensor.grad is None:
            assert f"{weight}_grad" not in found
            continue
        expected = tensor.grad.numpy()
        scale = max(1e-3, float(np.abs(expected).max()))
        np.testing.assert_allclose(found[f"{weight}_grad"], expected, atol=3e-5 * scale)


@pytest.mark.parametrize("recompute", CHOICES)
@pytest.mark.parametrize("name", NETS)
def test_recompute_changes_no_bit(name: str, recompute: str) -> None:
    again = made(name, recompute)
    clones = [node for node in again.graph.nodes if node.priority == 10]
    assert clones
    assert all(node.is_backward for node in clones)
    feeds = NETS[name][1]
    same(results(again, feeds), results(made(name), feeds))


def test_layer_boundaries_are_kept() -> None:
    """Gradients read no value between two kept ones of a transformer's forward part."""
    graph = made("transformer", "layers").graph
    kept = {
        value.node.name
        for node in graph.nodes
        if node.is_backward
        for value in node.reads()
        if value.node is not None and not value.node.is_backward
    }
    assert not any(name.startswith(("gelu", "attention")) for name in kept)
    assert len([n for n in kept if n.startswith("add")]) >= 2


@pytest.mark.parametrize("recompute", ["", "layers"])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    "order", ["reverse_depth_first", "priority_based", "memory_efficient", "least_peak"]
)
def test_orders_change_no_bit(name: str, recompute: str, order: str) -> None:
    feeds = NETS[name][1]
    same(
        results(made(name, recompute), feeds, execution_order=order),
        results(made(name), feeds),
    )


@pytest.mark.parametrize("name", NETS)
def test_recomputed_clones_are_not_merged(name: str) -> None:
    """Neither merging nor fusion joins what runs again with what ran before."""
    session = sardonyx.InferenceSession(made(name, "all"))
    marks = [node.annotations for node in session._compiled.model.graph.nodes]
    assert (10, True) in marks
    assert (0, False) in marks


@pytest.mark.parametrize("recompute", ["", "layers"])
@pytest.mark.parametrize("name", NETS)
def test_saved_graphs_keep_marks_and_results(name: str, recompute: str, tmp_path: Path) -> None:
    model, feeds, path = made(name, recompute), NETS[name][1], tmp_path / "gradient.onnx"
    save(model, SaveOptions(str(path)))
    read = load(path)
    assert sorted(n.annotations for n in read.graph.nodes) == sorted(
        n.annotations for n in model.graph.nodes
    )
    # Weights that are not fed are constants in a session of a file, and packed for other kernels.
    weights = {value.name: const.read() for value, const in model.graph.defaults.items()}
    same(results(path, feeds | weights), results(model, feeds | weights))


@pytest.mark.parametrize("name", ["transformer", "images"])
def test_onnxruntime_runs_what_is_saved(name: str, tmp_path: Path) -> None:
    path, feeds = tmp_path / "gradient.onnx", NETS[name][1]
    save(made(name), SaveOptions(str(path)))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = results(made(name), feeds)
    for output, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(value, expected[output.name], rtol=1e-3, atol=1e-5)


def test_training_lowers_the_loss() -> None:
    session = sardonyx.InferenceSession(made("transformer"))
    weights = dict(models.transformer()[1])
    losses = []
    for _ in range(20):
        loss, *grads = session.run(None, TEXT | weights)
        losses.append(float(loss))
        names = [o.name.removesuffix("_grad") for o in session.get_outputs()[1:]]
        weights |= {n: weights[n] - 0.1 * g for n, g in zip(names, grads, strict=True)}
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_sequences_without_steps(name: str) -> None:
    found = results(made(name), WORDS | {"tokens": np.zeros((0, 3), np.int64)})
    for weight in ("w", "r", "table"):
        assert not found[f"{weight}_grad"].any()
    assert found["head.b_grad"].any()

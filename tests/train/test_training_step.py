"""Training steps of ONNX models: equal to torch, repeatable to the bit, and in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as f
from onnx import numpy_helper, parser

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.train import SGD, Adafactor, Adam, AdamW, TrainingStep
from sardonyx.train.schedules import constant, cosine, linear
from sardonyx.train.step_memory import step_bytes
from tests.train import models, torch_nets

Array = Any


HEAD = '<ir_version: 10, opset_import: ["": 21]>'


CLASSIFIER = """g (float[batch, 2] x, int64[batch] labels) => (float loss, float[batch, 2] scores) {
    hidden = Gemm(x, w1, b1)  active = Tanh(hidden)  scores = Gemm(active, w2, b2)
    loss = SoftmaxCrossEntropyLoss(scores, labels) }"""


SHAPES = {"w1": (2, 8), "b1": (8,), "w2": (8, 2), "b2": (2,)}


FEEDS = {"x": np.float32([[0, 0], [0, 1], [1, 0], [1, 1]]), "labels": np.array([0, 1, 1, 0])}


def with_weights(text: str, weights: dict[str, Array]) -> Any:
    model = parser.parse_model(f"{HEAD} {text}")
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    return model


def classifier() -> tuple[Any, dict[str, Array]]:
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}
    return with_weights(CLASSIFIER, weights), weights


def classifier_in_torch(w: dict[str, Array], feeds: dict[str, Array]) -> Any:
    hidden = torch.tanh(feeds["x"] @ w["w1"] + w["b1"])
    return f.cross_entropy(hidden @ w["w2"] + w["b2"], feeds["labels"])


Net = Callable[[dict[str, Array], dict[str, Array]], Any]


def trained_by_torch(  # noqa: PLR0913 - one training
    net: Net, weights: dict[str, Array], feeds: list[dict[str, Array]], make: Any,
    max_norm: float | None = None, n: int = 50, parts: int = 1,
) -> tuple[list[float], dict[str, Array]]:  # fmt: skip
    """Losses and weights of torch; `parts` gradients are averaged for an update."""
    w = {name: torch.tensor(v, requires_grad=True) for name, v in weights.items()}
    optimizer = make(list(w.values()))
    losses = []
    for i in range(n):
        loss = net(w, {k: torch.tensor(v) for k, v in feeds[i % len(feeds)].items()})
        losses.append(loss.item())
        (loss / parts).backward()
        if i % parts == parts - 1:
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(list(w.values()), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    return losses, {name: v.detach().numpy() for name, v in w.items()}


def losses_of(step: TrainingStep, feeds: dict[str, Array], n: int, **options: Any) -> list[float]:
    return [float(step.run(feeds, **options)["loss"]) for _ in range(n)]


OPTIMIZERS = {
    "AdamW": (AdamW(0.05), lambda p: torch.optim.AdamW(p, 0.05)),
    "AdamW options": (
        AdamW(0.05, (0.8, 0.95), 1e-6, 0.3),
        lambda p: torch.optim.AdamW(p, 0.05, (0.8, 0.95), 1e-6, 0.3),
    ),
    "Adam": (Adam(0.05, weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1)),
    "SGD": (SGD(0.5), lambda p: torch.optim.SGD(p, 0.5)),
    "momentum": (
        SGD(0.1, 0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01),
    ),
    "Nesterov": (
        SGD(0.1, 0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True)
    ),
    "Adafactor": (
        Adafactor(0.03, weight_decay=0.1),
        lambda p: torch.optim.Adafactor(p, 0.03, weight_decay=0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("max_norm", [None, 0.3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_and_weights_are_those_of_torch(name: str, max_norm: float | None) -> None:
    ours, theirs = OPTIMIZERS[name]
    model, weights = classifier()
    step = TrainingStep(model, loss="loss", optimizer=ours, max_norm=max_norm)
    assert step.session._fast_path is not None
    found = losses_of(step, FEEDS, 50)
    expected, trained = trained_by_torch(classifier_in_torch, weights, [FEEDS], theirs, max_norm)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    for key, array in step.parameters.items():
        np.testing.assert_allclose(array, trained[key], atol=5e-5)
    assert step.state["step"] == 50


def feeds_for(name: str) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    if name == "image":
        image = rng.standard_normal((3, 3, 17, 16)).astype(np.float32)
        return {"image": image, "labels": np.array([0, 2, 1])}
    if name == "transformer":
        return {n: rng.integers(0, 11, (2, 5)) for n in ("tokens", "labels")}
    return {"tokens": rng.integers(0, 11, (4, 3)), "labels": np.array([0, 2, 1])}


def net_of(name: str) -> tuple[Any, dict[str, Array], Net]:
    if name == "image":
        return *models.image_net(), torch_nets.image_net
    if name == "transformer":
        return *models.transformer(), lambda w, x: torch_nets.transformer(w, x, 2, 2)
    return *models.recurrent_net(name), lambda w, x: torch_nets.recurrent_net(w, x, name)


@pytest.mark.parametrize("recompute", [None, "layers"])
@pytest.mark.parametrize("name", ["transformer", "image", "LSTM", "GRU"])
def test_networks(name: str, recompute: str | None) -> None:
    model, weights, net = net_of(name)
    step = TrainingStep(model, loss="loss", optimizer=AdamW(1e-3), recompute=recompute)
    found = losses_of(step, feeds_for(name), 20)
    expected, trained = trained_by_torch(
        net, weights, [feeds_for(name)], lambda p: torch.optim.AdamW(p, 1e-3), n=20
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    statistics = {n for n in weights if n.startswith("bn") and n.endswith(("mean", "var"))}
    assert step.parameters.keys() == weights.keys() - statistics
    assert statistics <= step.state.keys()
    # The bias of the keys has no effect on attention: there Adam divides noise by noise.
    for key, array in step.parameters.items():
        assert key.endswith(".k.b") or np.abs(array - trained[key]).mean() < 1e-4, key


@pytest.mark.parametrize("max_norm", [None, 0.2])
def test_accumulated_gradients_are_averaged(max_norm: float | None) -> None:
    model, weights = classifier()
    step = TrainingStep(model, loss="loss", accumulate=3, max_norm=max_norm)
    parts = [{k: v[i : i + 2] for k, v in FEEDS.items()} for i in range(3)]
    found = [float(step.run(parts[i % 3])["loss"]) for i in range(30)]
    expected, trained = trained_by_torch(
        classifier_in_torch, weights, parts, lambda p: torch.optim.AdamW(p, 1e-3), max_norm, 30, 3
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    for key, array in step.parameters.items():
        np.testing.assert_allclose(array, trained[key], atol=1e-6)
    assert step.state["step"] == 10
    assert step.state["runs"] == 30


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_keeps_float32_weights(precision: str) -> None:
    model, _ = models.transformer()
    plain = TrainingStep(model, optimizer=AdamW(1e-2))
    mixed = TrainingStep(model, optimizer=AdamW(1e-2), mixed_precision=precision)
    feeds = feeds_for("transformer")
    expected, found = losses_of(plain, feeds, 20), losses_of(mixed, feeds, 20)
    assert found != expected
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)
    assert {a.dtype for a in mixed.parameters.values()} == {np.dtype(np.float32)}


DROPOUT = """g (float[batch, 2] x, int64[batch] labels) => (float loss) {
    ratio = Constant<value_float = 0.25>()  yes = Constant<value = bool {1}>()
    hidden = Gemm(x, w1, b1)  active = Tanh(hidden)
    dropped, mask = Dropout(active, ratio, yes)
    scores = Gemm(dropped, w2, b2)  loss = SoftmaxCrossEntropyLoss(scores, labels) }"""


def dropping() -> Any:
    return with_weights(DROPOUT, classifier()[1])


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("name", ["transformer", "image", "dropout"])
def test_equal_to_the_bit_for_any_number_of_threads(name: str, threads: int) -> None:
    model = dropping() if name == "dropout" else net_of(name)[0]
    feeds = FEEDS if name == "dropout" else feeds_for(name)
    results = []
    for n in (1, threads):
        options = sardonyx.SessionOptions()
        options.intra_op_num_threads = n
        step = TrainingStep(model, loss="loss", max_norm=1.0, sess_options=options)
        losses = losses_of(step, feeds, 4)
        results.append((losses, step.parameters | step.state))
    assert results[0][0] == results[1][0]
    for key, array in results[0][1].items():
        np.testing.assert_array_equal(array, results[1][1][key], key)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulating": {"accumulate": 2},
    "float16": {"mixed_precision": "float16"},
    "Adafactor": {"optimizer": Adafactor()},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_training_resumes_to_the_bit(name: str) -> None:
    options = VARIANTS[name]
    first = TrainingStep(dropping(), **options)
    losses_of(first, FEEDS, 5)
    saved = copy.deepcopy((first.parameters, first.state))
    second = TrainingStep(dropping(), **options)
    second.load(*saved)
    assert losses_of(first, FEEDS, 5) == losses_of(second, FEEDS, 5)
    for key, array in (first.parameters | first.state).items():
        np.testing.assert_array_equal(array, (second.parameters | second.state)[key])


def test_arrays_are_updated_in_place() -> None:
    model, _ = classifier()
    step = TrainingStep(model, loss="loss")
    arrays = {n: a.ctypes.data for n, a in (step.parameters | step.state).items()}
    step.run(FEEDS)
    assert {n: a.ctypes.data for n, a in (step.parameters | step.state).items()} == arrays
    before = step.run(FEEDS)["loss"]
    step.parameters["w2"][...] = 0
    step.parameters["b2"][...] = 0
    assert step.run(FEEDS)["loss"] != before


def test_other_outputs_are_those_before_the_update() -> None:
    """They read the parameters too, and no update may come before them."""
    model, weights = classifier()
    step = TrainingStep(model, loss="loss", optimizer=SGD(100.0))
    scores = step.run(FEEDS)["scores"]
    hidden = np.tanh(FEEDS["x"] @ weights["w1"] + weights["b1"])
    np.testing.assert_allclose(scores, hidden @ weights["w2"] + weights["b2"], atol=1e-6)


# Outputs that are the parameter itself, its running statistic, or a view of them.
SAME = {
    "itself": "z = Identity(w)", "Reshape": "z = Reshape(w, shape)", "Cast": "z = Cast<to = 1>(w)",
    "Unsqueeze": "z = Unsqueeze(w, axis)", "Slice": "z = Slice(w, axis, shape)",
    "twice": "v = Identity(w)  z = Identity(v)", "a statistic": "z = Identity(mean)",
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SAME)
def test_outputs_that_are_parameters(name: str, dtype: Any) -> None:
    """They are as before the update, and later updates do not change them."""
    text = f"""g (float[3, 4] x) => (float loss, float[a] w, float[b] z) {{
        shape = Constant<value_ints = [4]>()  axis = Constant<value_ints = [0]>()
        y, m, v2 = BatchNormalization<training_mode = 1>(x, w, w, mean, var)  {SAME[name]}
        loss = ReduceSumSquare<keepdims = 0>(y) }}"""
    if dtype is np.float64:
        text = text.replace("float[", "double[").replace("float loss", "double loss")
        text = text.replace("to = 1", "to = 11")
    weights = {n: np.arange(i, i + 4, dtype=dtype) for i, n in enumerate(("w", "mean", "var"))}
    model = with_weights(text, weights)
    model.graph.output[2].type.tensor_type.ClearField("shape")
    step = TrainingStep(model, loss="loss", parameters=["w"], optimizer=SGD(0.1))
    x = np.arange(12, dtype=dtype).reshape(3, 4) ** 2
    first = step.run({"x": x})
    step.run({"x": x})
    expected = weights["mean" if name == "a statistic" else "w"]
    np.testing.assert_array_equal(first["w"], weights["w"])
    np.testing.assert_array_equal(first["z"].reshape(-1), expected)
    assert (step.parameters["w"] != weights["w"]).any()


def test_gradients_are_freed_by_their_update() -> None:
    layers = " ".join(f"m{i} = MatMul(y{i}, w{i})  y{i + 1} = Tanh(m{i})" for i in range(8))
    text = f"""g (float[4, 256] y0) => (float loss) {{ {layers}
        loss = ReduceMean<keepdims = 0>(y8) }}"""
    rng = np.random.default_rng(0)
    shape = (256, 256)
    weights = {f"w{i}": rng.standard_normal(shape).astype(np.float32) for i in range(8)}
    model, feeds = with_weights(text, weights), {"y0": np.ones((4, 256), np.float32)}
    from sardonyx.train.step_memory import step_bytes

    def arena(**options: Any) -> int:
        step = TrainingStep(model, **options)
        step.run(feeds)
        return step_bytes(step.session, {**feeds, **step._own})

    one = 256 * 256 * 4
    assert arena() < 3 * one
    assert 8 * one <= arena(max_norm=1.0) < 11 * one


def test_frozen_parameters_have_no_gradient(tmp_path: Path) -> None:
    model, weights = classifier()
    step = TrainingStep(model, loss="loss", parameters=["*2"])
    assert set(step.parameters) == {"w2", "b2"}
    assert step.state.keys() == {
        "step", "runs", *(f"{n}.exp_avg{s}" for n in ("w2", "b2") for s in ("", "_sq"))
    }  # fmt: skip
    ops = [n.op.name for n in step.session._compiled.model.graph.nodes if n.is_backward]
    assert "TanhGrad" not in ops
    step.run(FEEDS)
    trained = {
        t.name: numpy_helper.to_array(t) for t in saved(step, tmp_path / "m.onnx").graph.initializer
    }
    np.testing.assert_array_equal(trained["w1"], weights["w1"])
    assert (trained["w2"] != weights["w2"]).any()


def test_brackets_in_names_are_not_patterns() -> None:
    names = {n: f"layers[{n[1]}].{n[0]}" for n in SHAPES}
    model, _ = classifier()
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)
    chosen = ["layers[1].w", "*2].b"]
    step = TrainingStep(model, loss="loss", parameters=chosen)
    assert step.parameters.keys() == {"layers[1].w", "layers[2].b"}


def test_a_parameter_may_have_the_name_of_a_state() -> None:
    def made(name: str) -> tuple[TrainingStep, list[float]]:
        model, _ = classifier()
        model.graph.initializer[2].name = model.graph.node[2].input[1] = name
        step = TrainingStep(model, loss="loss", optimizer=AdamW(0.05))
        return step, losses_of(step, FEEDS, 5)

    (plain, expected), (step, found) = made("w2"), made("w1.exp_avg")
    assert found == expected
    np.testing.assert_array_equal(step.parameters["w1.exp_avg"], plain.parameters["w2"])
    np.testing.assert_array_equal(step.state["w1.exp_avg_"], plain.state["w1.exp_avg"])


def saved(step: TrainingStep, path: Path) -> Any:
    step.save(path)
    return onnx.load(path)


def test_the_trained_model_is_saved(tmp_path: Path) -> None:
    model, _ = classifier()
    step = TrainingStep(model, loss="loss")
    losses_of(step, FEEDS, 3)
    proto = saved(step, tmp_path / "trained.onnx")
    assert [n.op_type for n in proto.graph.node] == [n.op_type for n in model.graph.node]
    expected = step.run(FEEDS, lr=0.0)["loss"]
    for source in (tmp_path / "trained.onnx", proto):
        found = sardonyx.InferenceSession(source).run(["loss"], FEEDS)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-6)  # inference multiplies otherwise
    step.run(FEEDS)
    assert sardonyx.InferenceSession(step.to_model()).run(["loss"], FEEDS)[0] < expected - 1e-4
    again = TrainingStep(tmp_path / "trained.onnx", loss="loss")
    assert again.run(FEEDS)["loss"] == expected


def test_external_data_stays_external(tmp_path: Path) -> None:
    model, _ = classifier()
    path = tmp_path / "model.onnx"
    onnx.save(
        model, path, save_as_external_data=True, location="model.data", size_threshold=0,
        convert_attribute=False,
    )  # fmt: skip
    step = TrainingStep(path, loss="loss")
    step.run(FEEDS)
    (tmp_path / "out").mkdir()
    step.save(tmp_path / "out" / "trained.onnx")
    step.save(path)  # over the model that is being read
    files = {p.name for p in (tmp_path / "out").iterdir()}
    assert "trained.onnx" in files
    for target in (tmp_path / "out" / "trained.onnx", path):
        arrays = {t.name: numpy_helper.to_array(t) for t in onnx.load(target).graph.initializer}
        for key, array in step.parameters.items():
            np.testing.assert_array_equal(arrays[key], array)
    assert np.isfinite(step.run(FEEDS)["loss"])


def test_schedules() -> None:
    rise = [0.0, 0.25, 0.5, 0.75, 1.0]
    flat = constant(1.0, warmup=4)
    assert [flat(i) for i in (0, 1, 2, 3, 4)] == rise
    assert flat(99) == 1.0
    line = linear(1.0, warmup=4, total=8, final=0.2)
    assert [line(i) for i in range(5)] == rise
    np.testing.assert_allclose([line(i) for i in (6, 8, 99)], [0.6, 0.2, 0.2])
    wave = cosine(1.0, warmup=4, total=8)
    np.testing.assert_allclose([wave(i) for i in (2, 4, 6, 8, 9)], [0.5, 1, 0.5, 0, 0], atol=1e-15)
    with pytest.raises(InvalidArgument, match="less than the 8 updates, got 8"):
        linear(1.0, warmup=8, total=8)


def test_a_learning_rate_is_a_function_of_the_step() -> None:
    model, _ = classifier()
    seen: list[int] = []

    def rate(count: int) -> float:
        seen.append(count)
        return 0.1 / (count + 1)

    step = TrainingStep(model, loss="loss", optimizer=SGD(rate))
    other = TrainingStep(model, loss="loss", optimizer=SGD(1.0))
    for i in range(4):
        step.run(FEEDS)
        other.run(FEEDS, lr=0.1 / (i + 1))
    assert seen == [0, 1, 2, 3]
    for key, array in step.parameters.items():
        np.testing.assert_array_equal(array, other.parameters[key])


def test_a_memory_budget_recomputes() -> None:
    model, _ = models.transformer(layers=6, width=64)
    feeds = {n: np.zeros((4, 64), np.int64) for n in ("tokens", "labels")}
    plain = TrainingStep(model)
    plenty = TrainingStep(model, memory_budget=1 << 40)
    little = TrainingStep(model, memory_budget=1 << 20)
    expected = losses_of(plain, feeds, 3)
    assert losses_of(plenty, feeds, 3) == losses_of(little, feeds, 3) == expected

    def n_again(step: TrainingStep) -> int:
        return sum(n.priority > 0 for n in step.session._compiled.model.graph.nodes)

    assert n_again(plenty) == 0
    assert n_again(little) > 0
    # Between the two only the first layers are recomputed.
    most, least = (step_bytes(step.session, {**feeds, **step._own}) for step in (plain, little))
    some = TrainingStep(model, memory_budget=(most + least) // 2)
    assert losses_of(some, feeds, 3) == expected
    assert 0 < n_again(some) < n_again(little)
    assert least < step_bytes(some.session, {**feeds, **some._own}) <= (most + least) // 2


def test_arrays_stay_when_a_budget_recomputes(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = models.image_net()
    step = TrainingStep(model, loss="loss", memory_budget=0)
    arrays = step.parameters | step.state
    before = {n: a.copy() for n, a in arrays.items()}
    step.run(feeds_for("image"))
    assert all(array is arrays[n] for n, array in (step.parameters | step.state).items())
    assert any((array != before[n]).any() for n, array in arrays.items())
    assert "memory_budget is 0 bytes" in caplog.text


def test_float64_is_trained_too() -> None:
    text = CLASSIFIER.replace("float[", "double[").replace("float loss", "double loss")
    _, weights = classifier()
    wide = {n: w.astype(np.float64) for n, w in weights.items()}
    step = TrainingStep(with_weights(text, wide), loss="loss", optimizer=AdamW(0.05))
    found = losses_of(step, FEEDS | {"x": FEEDS["x"].astype(np.float64)}, 20)
    expected, _ = trained_by_torch(
        classifier_in_torch, wide, [FEEDS | {"x": FEEDS["x"].astype(np.float64)}],
        lambda p: torch.optim.AdamW(p, 0.05), n=20,
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3,), (4, 3)], ids=str)
def test_adafactor_divides_tiny_gradients_as_torch_does(shape: tuple[int, ...], dtype: Any) -> None:
    """They are less than the epsilon of float32, and more than that of float64."""
    text = "g (float[k] x) => (float loss) { y = Mul(x, w)  loss = ReduceSum<keepdims = 0>(y) }"
    text = text.replace("[k]", str(list(shape)))
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(dtype) * s for s in (1e-6, 1e-9))
    weights = {"w": w.astype(dtype)}
    text = text if dtype is np.float32 else text.replace("float", "double")
    step = TrainingStep(with_weights(text, weights), optimizer=Adafactor(0.01))
    losses_of(step, {"x": x.astype(dtype)}, 3)
    _, trained = trained_by_torch(
        lambda w, feeds: (w["w"] * feeds["x"]).sum(), weights, [{"x": x.astype(dtype)}],
        lambda p: torch.optim.Adafactor(p, 0.01), n=3,
    )  # fmt: skip
    change = trained["w"] - w
    np.testing.assert_allclose(step.parameters["w"] - w, change, atol=1e-4 * np.abs(change).max())


def test_gradients_that_are_other_parameters() -> None:
    """The gradient of sum(v w) by v is w, which its own update must not change before."""
    text = "g (float[2] x) => (float loss) { p = Mul(v, w) q = Mul(p, x) loss = ReduceSum(q) }"
    weights = {"v": np.float32([1, 2]), "w": np.float32([3, 4])}
    text = text.replace("ReduceSum(q)", "ReduceSum<keepdims = 0>(p)")
    text = text.replace("(float[2] x)", "()").replace(" q = Mul(p, x)", "")
    step = TrainingStep(with_weights(text, weights), optimizer=SGD(0.5))
    assert step.run({})["loss"] == 11
    np.testing.assert_array_equal(step.parameters["v"], [-0.5, 0])
    np.testing.assert_array_equal(step.parameters["w"], [2.5, 3])

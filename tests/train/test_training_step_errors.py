"""Wrong arguments, feeds, states and losses of training steps, and nodes that update inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from onnx import parser

import sardonyx
from sardonyx.errors import InvalidArgument, InvalidGraph, NotImplemented, RuntimeException
from sardonyx.train import SGD, Adafactor, AdamW, TrainingStep
from tests.train import models
from tests.train.test_training_step import (
    CLASSIFIER,
    FEEDS,
    classifier,
    feeds_for,
    losses_of,
    with_weights,
)

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "max_norm": ({"max_norm": -1}, "max_norm must be at least 0, got -1"),
    "max_norm as text": ({"max_norm": "1"}, "max_norm must be at least 0, got '1'"),
    "budget as text": ({"memory_budget": "1GB"}, "memory_budget must be.*got '1GB'"),
    "a number": ({"parameters": 7}, "`parameters` must be names or patterns, got 7"),
    "numbers": ({"parameters": [7]}, r"`parameters` must be names or patterns, got \[7\]"),
    "a dim": ({"dims": {"nope": 3}}, r"dims has a size for 'nope'(.|\n)*dims +batch"),
    "a negative dim": ({"dims": {"batch": -3}}, "the dim batch must be.*got -3"),
    "dims": ({"dims": "batch"}, "dims must be sizes by name, got 'batch'"),
    "accumulate": ({"accumulate": 0}, "accumulate must be a positive integer, got 0"),
    "half a run": ({"accumulate": 1.5}, "accumulate must be a positive integer, got 1.5"),
    "an optimizer by name": ({"optimizer": "adam"}, r"must be.*got 'adam'(.|\n)*AdamW\(lr="),
    "the class of an optimizer": ({"optimizer": SGD}, "optimizer must be.*got <class"),
    "an optimizer of torch": (
        {"optimizer": torch.optim.SGD([torch.zeros(1)], 0.1)}, "optimizer must be.*got SGD"
    ),
    "precision": ({"mixed_precision": "int8"}, "mixed_precision must be.*got 'int8'"),
    "budget": ({"memory_budget": -5}, "memory_budget must be.*got -5"),
    "no loss": ({"loss": None}, r"2 outputs: loss, scores\n.*by `loss`"),
    "a loss of many elements": (
        {"loss": "scores"}, r"a loss must have one element(.|\n)*reduce it in the model$"
    ),
    "a name": ({"parameters": ["w9"]}, "no input or initializer 'w9'"),
    "a pattern": ({"parameters": ["q*"]}, "matches 'q\\*'; there are w1"),
    "none": ({"parameters": []}, "`parameters` is empty"),
    "an input": ({"parameters": ["x"]}, "x is an input of the model"),
    "betas": ({"optimizer": AdamW(betas=(1.0, 0.9))}, "betas must be two numbers"),
    "eps": ({"optimizer": AdamW(eps=-1)}, "eps must be at least 0, got -1"),
    "nesterov": ({"optimizer": SGD(nesterov=True)}, "needs a momentum"),
    "d": ({"optimizer": Adafactor(d=0.5)}, "d must be at least 1, got 0.5"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    options, said = WRONG[name]
    with pytest.raises(InvalidArgument, match=said):
        TrainingStep(classifier()[0], **{"loss": "loss", **options})


@pytest.mark.parametrize("accumulate", [1, 2])
def test_parameters_with_names_of_states(accumulate: int) -> None:
    """They are trained as under other names, and the states get names that are free."""
    names = {"w1": "w2.exp_avg", "b1": "w2.grad_sum", "w2": "w2", "b2": "w2.exp_avg_sq"}
    model, weights = classifier()
    renamed = with_weights(CLASSIFIER, {names[n]: w for n, w in weights.items()})
    for node in renamed.graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
    plain, other = (TrainingStep(m, loss="loss", accumulate=accumulate) for m in (model, renamed))
    assert losses_of(plain, FEEDS, 4) == losses_of(other, FEEDS, 4)
    assert not set(other.parameters) & set(other.state)
    assert len(other.state) == len(plain.state)
    for name, array in plain.parameters.items():
        np.testing.assert_array_equal(other.parameters[names[name]], array)


@pytest.mark.parametrize("name", ["step", "runs", "loss_scale"])
def test_a_statistic_with_the_name_of_a_counter(name: str) -> None:
    text = f"""g (float[4, 2] x) => (float loss) {{
        y, m, v = BatchNormalization<training_mode = 1>(x, s, b, {name}, var)
        loss = ReduceSumSquare<keepdims = 0>(y) }}"""
    model = with_weights(text, {n: np.ones(2, np.float32) for n in ("s", "b", name, "var")})
    with pytest.raises(InvalidArgument, match=f"running statistic {name} has the name"):
        TrainingStep(model, mixed_precision="float16")


def test_running_statistics_in_a_body() -> None:
    text = """g (float[n, 3] x, bool k) => (float loss) {
        y = If (k) <
            then_branch = t () => (float[n, 3] p) {
                [norm] p, m, v = BatchNormalization<training_mode = 1>(x, s, b, mean, var) },
            else_branch = f () => (float[n, 3] q) { q = Identity(x) }>
        z = Mul(y, s)  loss = ReduceSum<keepdims = 0>(z) }"""
    weights = {n: np.ones(3, np.float32) for n in ("s", "b", "mean", "var")}
    said = r"(?s)training mode is in the body of If, where its running statistics.*norm.*hint"
    with pytest.raises(NotImplemented, match=said):
        TrainingStep(with_weights(text, weights))
    plain = text.replace("training_mode = 1", "training_mode = 0").replace("p, m, v", "p")
    TrainingStep(with_weights(plain, weights))


def test_wrong_feeds() -> None:
    step = TrainingStep(classifier()[0], loss="loss")
    with pytest.raises(InvalidArgument, match="w1 is a parameter or state"):
        step.run(FEEDS | {"w1": np.zeros((2, 8), np.float32)})
    with pytest.raises(InvalidArgument, match="q is not an input; the inputs are labels, x"):
        step.run(FEEDS | {"q": 1})
    with pytest.raises(InvalidArgument, match="the feeds lack labels; they have x"):
        step.run({"x": FEEDS["x"]})
    with pytest.raises(InvalidArgument, match="rank 3") as caught:
        step.run(FEEDS | {"x": FEEDS["x"][None]})
    assert caught.value.where["fed"] == "x [1, 4, 2], labels [4]"
    with pytest.raises(InvalidArgument, match="learning rate of step 1 is -1"):
        step.run(FEEDS, lr=-1)
    with pytest.raises(InvalidArgument, match="learning rate of step 1 is '1e-3'"):
        step.run(FEEDS, lr="1e-3")  # type: ignore[arg-type]


LOADS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "missing": (lambda p, s: p.pop("w1"), "parameter w1 is missing"),
    "unknown": (lambda p, s: p.update(q=1), "no parameter q"),
    "shape": (
        lambda p, s: p.update(w1=p["w1"].T),
        r"w1 must have the shape \[2, 8\], got \[8, 2\]",
    ),
    "type": (
        lambda p, s: p.update(w1=p["w1"].astype(float)),
        "w1 must be of type float32, got float64",
    ),
    "state": (lambda p, s: s.pop("w1.exp_avg"), "state w1.exp_avg is missing"),
}


@pytest.mark.parametrize("name", LOADS)
def test_states_that_do_not_fit_are_not_loaded(name: str) -> None:
    change, said = LOADS[name]
    step = TrainingStep(classifier()[0], loss="loss")
    parameters = {n: a + 1 for n, a in step.parameters.items()}
    state = {n: a + 1 for n, a in step.state.items()}
    change(parameters, state)
    before = {n: a.copy() for n, a in (step.parameters | step.state).items()}
    with pytest.raises(InvalidArgument, match=said):
        step.load(parameters, state)
    assert all((before[n] == a).all() for n, a in (step.parameters | step.state).items())


UPDATE = """g (double[6] c, float[4] p, float[4] g) => (uint8[1] u) {
    u, q = sardonyx.train.SGDUpdate(c, p, g) }"""


CONTROL = np.float64([0.5, 1, 1, 1, 0, 1])


def updating(text: str = UPDATE) -> sardonyx.InferenceSession:
    head = '<ir_version: 10, opset_import: ["": 21, "sardonyx.train": 1]>'
    return sardonyx.InferenceSession(parser.parse_model(f"{head} {text}"))


def test_an_update_writes_to_the_fed_array() -> None:
    session = updating()
    p = np.ones(4, np.float32)
    for run in (None, sardonyx.RunOptions()):
        p[:] = 1
        (flag,) = session.run(None, {"c": CONTROL, "p": p, "g": p * 2}, run)
        assert flag == 1
        np.testing.assert_array_equal(p, 0)


@pytest.mark.parametrize("kind", ["read-only", "strided", "list"])
def test_an_update_needs_an_array_that_it_can_write(kind: str) -> None:
    p: Any = np.ones(8, np.float32)[:: 2 if kind == "strided" else 1][:4]
    if kind == "read-only":
        p.flags.writeable = False
    with pytest.raises(InvalidArgument, match="input p is updated in place, and needs a writable"):
        updating().run(
            None, {"c": CONTROL, "p": p.tolist() if kind == "list" else p, "g": np.array(p)}
        )


def test_only_inputs_are_updated() -> None:
    text = UPDATE.replace("{", "{ z = Neg(p)").replace("(c, p, g)", "(c, z, g)")
    with pytest.raises(InvalidGraph, match="which is not an input of the model"):
        updating(text)


@pytest.mark.parametrize(
    ("label", "said"), [(9, "index 9 "), (-1, "the label at position 2 is below 0")]
)
def test_a_label_out_of_range_changes_nothing(label: int, said: str) -> None:
    step = TrainingStep(classifier()[0], loss="loss")
    before = {n: a.copy() for n, a in (step.parameters | step.state).items()}
    with pytest.raises(InvalidArgument, match=said):
        step.run(FEEDS | {"labels": np.array([0, 1, label, 0])})
    assert all((before[n] == a).all() for n, a in (step.parameters | step.state).items())


def test_a_step_that_overflows_float16_is_skipped() -> None:
    model, _ = classifier()
    step = TrainingStep(model, loss="loss", mixed_precision="float16")
    before = {n: a.copy() for n, a in step.parameters.items()}
    scale = 1e30  # of the loss, whose gradients then overflow
    step.state["loss_scale"][...] = scale
    assert np.isfinite(step.run(FEEDS)["loss"])
    assert step.state["loss_scale"] == pytest.approx(scale / 2)
    assert step.state["step"] == 0
    assert all((before[n] == a).all() for n, a in step.parameters.items())
    step.state["loss_scale"][...] = 1024
    step.run(FEEDS)
    assert step.state["step"] == 1
    assert any((before[n] != a).any() for n, a in step.parameters.items())


def test_the_scale_of_the_loss_has_a_lower_bound() -> None:
    model = with_weights(
        """g (float[4, 8] x) => (float loss) {
            a = MatMul(x, w) b = Mul(a, huge) c = Mul(b, small)
            loss = ReduceSum<keepdims=0>(c) }""",
        {"w": np.eye(8, dtype=np.float32), "huge": np.float32(1e20), "small": np.float32(1e-10)},
    )
    step = TrainingStep(model, mixed_precision="float16")
    feeds = {"x": np.ones((4, 8), np.float32)}
    with pytest.raises(RuntimeException, match="overflow float16 even if the loss is") as caught:
        losses_of(step, feeds, 40)
    assert caught.value.where["training"] == "step 1"
    assert step.state["loss_scale"] >= 1e-4
    np.testing.assert_array_equal(step.parameters["w"], np.eye(8))


@pytest.mark.parametrize("precision", [None, "bfloat16", "float16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_that_is_not_finite_changes_nothing(accumulate: int, precision: str | None) -> None:
    model, _ = models.image_net()
    step = TrainingStep(model, loss="loss", accumulate=accumulate, mixed_precision=precision)
    if precision == "float16":
        step.state["loss_scale"][...] = 1024
    feeds = feeds_for("image")
    for _ in range(3):
        step.run(feeds)
    before = {n: a.copy() for n, a in (step.parameters | step.state).items()}
    wrong = feeds | {"image": np.full_like(feeds["image"], np.nan)}
    number = 4 if accumulate == 1 else 2
    with pytest.raises(RuntimeException, match=f"loss of step {number} is nan"):
        step.run(wrong)
    after = step.parameters | step.state
    assert all((before[n] == after[n]).all() for n in before)
    step.run(feeds)


def test_a_loss_that_is_not_finite_with_gradients_that_are() -> None:
    model = with_weights(
        """g (float[4, 8] x, float u) => (float loss) {
            a = MatMul(x, w) s = ReduceSumSquare<keepdims=0>(a) l = Log(u) loss = Add(s, l) }""",
        {"w": np.eye(8, dtype=np.float32)},
    )
    step = TrainingStep(model, mixed_precision="float16")
    feeds = {"x": np.full((4, 8), 1e-3, np.float32)}
    with pytest.raises(RuntimeException, match="loss of step 1 is nan"):
        step.run(feeds | {"u": np.float32(-1)})
    np.testing.assert_array_equal(step.parameters["w"], np.eye(8))
    assert not step.state["w.exp_avg"].any()
    step.run(feeds | {"u": np.float32(1)})
    assert (step.parameters["w"] != np.eye(8)).any()

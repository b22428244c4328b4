"""Losses that are added to models exported for inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.models import DIGITS, SAMPLES
from sardonyx.train import add_loss, fit, lora, merge

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((4, 3)).astype(np.float32)


def scorer(shape: str, end: str = "y = Identity(s)") -> onnx.ModelProto:
    text = f"g (float[{shape}, 4] x) => (float[{shape}, 3] y, float[{shape}, 3] s) {{"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> {text} s = MatMul(x, w) {end} }}'
    )
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    return model


def cross_entropy(scores: Any, labels: Any) -> float:
    rows, flat = scores.reshape(-1, 3).astype(np.float64), labels.reshape(-1)
    logs = np.log(np.exp(rows).sum(1)) - rows[np.arange(len(rows)), np.clip(flat, 0, None)]
    return float(logs[flat >= 0].mean())


@pytest.mark.parametrize("end", ["y = Identity(s)", "y = Softmax(s)"])
@pytest.mark.parametrize("shape", ["n", "n, t"])
def test_cross_entropy(shape: str, end: str) -> None:
    made = add_loss(scorer(shape, end), "y", keep=["s"])
    assert [o.name for o in made.outputs] == ["loss", "s"]
    size = (5, 2)[: len(shape.split(","))]
    x = RNG.standard_normal((*size, 4)).astype(np.float32)
    labels = RNG.integers(0, 3, size)
    labels.reshape(-1)[1] = -100
    session = sardonyx.InferenceSession(made)
    assert [i.name for i in session.get_inputs()] == ["x", "labels"]
    loss, s = session.run(None, {"x": x, "labels": labels})
    assert loss == pytest.approx(cross_entropy(s, labels), rel=1e-5)


def test_mean_squared_error() -> None:
    made = add_loss(scorer("n"), "y", kind="mse", labels="goal", loss="error")
    x, goal = (RNG.standard_normal(s).astype(np.float32) for s in ((5, 4), (5, 3)))
    (loss,) = sardonyx.InferenceSession(made).run(["error"], {"x": x, "goal": goal})
    assert loss == pytest.approx(((x @ WEIGHT - goal) ** 2).mean(), rel=1e-5)


def test_the_name_of_an_output_that_is_left_out() -> None:
    made = add_loss(scorer("n"), "y", loss="s")
    names = [v.name for v in made.graph.all_values()]
    assert [o.name for o in made.outputs] == ["s"]
    assert names.count("s") == 1
    data = {"x": RNG.standard_normal((5, 4)).astype("f"), "labels": np.zeros(5, np.int64)}
    result = fit(made, data, epochs=9, lr=0.1)
    assert result.losses[-1] < result.losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the outputs y, s; name the one to train"),
        ({"output": "z"}, "there is no 'z'"),
        ({"output": "y", "keep": ["z"]}, "there is no 'z'"),
        ({"output": "y", "kind": "hinge"}, "kind must be one of .*got 'hinge'"),
        ({"output": "y", "labels": "x"}, "already has a value 'x'"),
        ({"output": "y", "loss": "w"}, "already has a value 'w'; choose another name by `loss`"),
        ({"output": "y", "loss": "s", "keep": ["s"]}, "already has a value 's'"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        add_loss(scorer("n"), **options)


def test_scores_without_classes() -> None:
    text = "g (float[n] x) => (float[n] y) { y = Neg(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    with pytest.raises(InvalidArgument, match="needs a last axis of classes"):
        add_loss(model)
    text = "g (float[n] x) => (int64[n] y) { y = Cast<to=7>(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    with pytest.raises(InvalidArgument, match="a loss needs floats"):
        add_loss(model)


def test_an_exported_classifier_is_trained_on() -> None:
    with np.load(SAMPLES) as samples:
        data = {"image": samples["image"], "labels": samples["label"]}
    result = fit(add_loss(DIGITS), data, epochs=20, parameters=["classes.*"], lr=1e-3)
    assert result.losses[-1] < result.losses[0]
    assert result.parameters.keys() == {"classes.weight", "classes.bias"}


def digits_with_loss(kind: str) -> Any:
    made = add_loss(DIGITS, "probabilities")
    if kind == "lora":
        made = lora(made, ["classes.*"], rank=2)
    elif kind == "merged":
        adapted = lora(made, ["classes.*"], rank=2)
        made = merge(made, adapted.folded({n: a + 0.01 for n, a in adapted.parameters.items()}))
    return made


@pytest.mark.parametrize("kind", ["plain", "lora", "merged"])
def test_a_trained_model_has_no_added_loss(kind: str, tmp_path: Path) -> None:
    """Inputs and outputs are those before the loss, and the weights are trained."""
    with np.load(SAMPLES) as samples:
        data = {"image": samples["image"], "labels": samples["label"]}
    result = fit(digits_with_loss(kind), data, epochs=5, lr=1e-4)
    assert result.losses[-1] != result.losses[0]
    result.save(tmp_path / "m.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))
    session, before = (sardonyx.InferenceSession(m) for m in (tmp_path / "m.onnx", DIGITS))
    assert [i.name for i in session.get_inputs()] == [i.name for i in before.get_inputs()]
    assert [o.name for o in session.get_outputs()] == [o.name for o in before.get_outputs()]
    (probabilities,) = session.run(["probabilities"], {"image": data["image"]})
    step = sardonyx.InferenceSession(result.step.to_model())
    (loss,) = step.run(["loss"], data)
    picked = probabilities[np.arange(len(probabilities)), data["labels"]]
    assert -np.log(picked).mean() == pytest.approx(float(loss), rel=1e-3)

"""`fit`: models trained end to end, what it returns and saves, and its curve."""

from __future__ import annotations

import json
import re
import resource
import signal
import struct
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.errors import Fail, InvalidArgument, SardonyxError
from sardonyx.train import SGD, AdamW, TrainingStep, fit, lora, merge
from sardonyx.train.checkpoint import CheckpointFolder
from sardonyx.train.inference_form import inference_form
from sardonyx.train.loss_curve import loss_curve
from tests.train import killed
from tests.train.plain_step import DATA, regression


def trained(**options: Any) -> Any:
    defaults = {"loss": "loss", "epochs": 40, "batch_size": 4, "optimizer": SGD(0.05, 0.9)}
    return fit(regression(), DATA, **(defaults | options))


def weights(result: Any) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in result.parameters.items()}


def test_a_regression_is_fitted(tmp_path: Path) -> None:
    seen = []
    result = trained(
        epochs=80,
        evaluation=DATA,
        metrics={"error": lambda out, fed: np.abs(out["y"] - fed["goal"]).mean()},
        on_step=seen.append,
    )
    np.testing.assert_allclose(result.parameters["w"][:, 0], [1, -2, 0.5], atol=1e-2)
    assert len(result.losses) == len(seen) == 240
    assert len(result.evaluations) == 80
    assert result.evaluations[-1]["error"] < 1e-2
    assert not result.stopped
    result.save(tmp_path / "m.onnx")
    session = sardonyx.InferenceSession(tmp_path / "m.onnx")
    np.testing.assert_allclose(session.run(["y"], DATA)[0], DATA["goal"], atol=0.05)
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))


@pytest.mark.parametrize("name", ["step", "runs", "w.exp_avg"])
def test_inputs_may_have_names_of_states(name: str) -> None:
    model = regression()
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    data = {name: DATA["x"], "goal": DATA["goal"]}
    found = fit(model, data, loss="loss", epochs=2, batch_size=4)
    assert found.losses == fit(regression(), DATA, loss="loss", epochs=2, batch_size=4).losses


def test_results_are_repeatable_and_depend_on_the_seed() -> None:
    assert weights(trained()) == weights(trained())
    assert weights(trained()) != weights(trained(seed=1))


@pytest.mark.parametrize("stop", [1, 7, 60])
def test_resumption_is_exact(stop: int, tmp_path: Path) -> None:
    options = {"optimizer": AdamW(0.05), "accumulate": 2, "max_norm": 1.0}
    whole = trained(**options)
    trained(**options, steps=stop, checkpoints=tmp_path)
    again = trained(**options, checkpoints=CheckpointFolder(tmp_path), resume=True)
    assert weights(again) == weights(whole)
    assert again.losses == whole.losses


def test_a_full_disk_is_reported_and_the_run_continues(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill(report: Any) -> None:
        if report.step == 10:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))

    try:
        with pytest.raises(Fail, match=r"step-00000012.safetensors cannot be written") as caught:
            trained(checkpoints=tmp_path, save_every=4, on_step=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert "free space" in caught.value.where["hint"]
    assert list(CheckpointFolder(tmp_path).steps()) == [4, 8]
    again = trained(checkpoints=tmp_path, save_every=4, resume=True)
    assert weights(again) == weights(trained())


@pytest.mark.parametrize("folder", ["/proc/none", "/proc/self"])
def test_a_folder_that_cannot_be_written_ends_it_before_the_first_step(folder: str) -> None:
    seen: list[Any] = []
    with pytest.raises(Fail, match=f"the folder {folder} cannot be"):
        trained(checkpoints=folder, on_step=seen.append)
    assert not seen


def test_a_last_checkpoint_that_cannot_be_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise Fail("the checkpoint step-00000120 cannot be written: No space left on device")

    monkeypatch.setattr(CheckpointFolder, "save", full)
    assert weights(trained(checkpoints=tmp_path)) == weights(trained())
    assert "training has ended, and is not saved: the checkpoint step-00000120" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": {"a": lambda out, fed: 0.0}}, "`metrics` need data for `evaluation`"),
        (
            {"accumulate": 8, "epochs": 2},
            "accumulate must be at most the 6 steps",
        ),
        ({"evaluation": iter([DATA])}, "evaluation is an iterator: it can be read only once"),
        ({"evaluation": DATA, "metrics": ["a"]}, "metrics must be functions by name, got .'a'"),
        ({"evaluation": 5}, "evaluation is a int, not arrays"),
        ({"checkpoints": 5}, "checkpoints must be the path of a folder, got 5"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        trained(**options)


@pytest.mark.parametrize("data", ["x", "{}"])
def test_a_checkpoint_of_another_program(data: str, tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"data": data}}).encode()
    file = struct.pack("<Q", len(header)) + header
    (tmp_path / "step-00000003.safetensors").write_bytes(file)
    with pytest.raises(InvalidArgument, match="is not a checkpoint of a training run"):
        trained(checkpoints=tmp_path, resume=True)


def test_early_stopping_returns_the_best() -> None:
    rate = {"lr": lambda count: 0.05 if count < 30 else 0.8}
    result = trained(**rate, epochs=99, patience=2, evaluation=DATA)
    assert result.stopped
    values = [e["loss"] for e in result.evaluations]
    y = DATA["x"] @ result.parameters["w"] + result.parameters["b"]
    assert ((y - DATA["goal"]) ** 2).mean() == pytest.approx(min(values), rel=1e-4)


@pytest.mark.parametrize("ending", ["patience", "epochs", "resumption"])
def test_the_best_model_has_the_statistics_of_its_evaluation(ending: str, tmp_path: Path) -> None:
    np.random.seed(0)
    held_back = list(killed.data(0))[:4]
    rates = {"lr": lambda count: 0.01 if count < 6 else 3.0}
    options: dict[str, Any] = {"evaluation": held_back, "evaluate_every": 1, **rates}
    patience = 3 if ending == "patience" else 99
    if ending == "resumption":
        fit(
            killed.classifier(), killed.data, **options, patience=99, steps=10, checkpoints=tmp_path
        )
        options |= {"checkpoints": tmp_path, "resume": True}
    result = fit(killed.classifier(), killed.data, **options, patience=patience, steps=14)
    assert bool(result.stopped) == (ending == "patience")
    losses = [e["loss"] for e in result.evaluations]
    assert min(losses) < losses[-1]
    session = sardonyx.InferenceSession(result.to_model())
    total = np.mean([session.run(None, feeds)[0] for feeds in held_back])
    assert total == pytest.approx(min(losses), rel=1e-5)


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    data = {n: a.copy() for n, a in DATA.items()}
    data["x"][3] = np.inf
    with pytest.raises(SardonyxError, match=r"nan|inf") as caught:
        fit(regression(), data, loss="loss", epochs=2, batch_size=2, checkpoints=tmp_path)
    assert "of epoch 1" in caught.value.where["training"]
    assert caught.value.where["hint"]


def test_dropout_and_statistics_are_for_training_only(tmp_path: Path) -> None:
    """Evaluation and the saved model have no Dropout, and running statistics that were trained."""
    np.random.seed(0)
    held_back = list(killed.data(0))[:4]
    model = killed.classifier()
    options = {"steps": 200, "optimizer": AdamW(0.01), "evaluation": held_back}
    result = fit(model, killed.data, evaluate_every=100, **options)
    assert result.evaluations[-1]["loss"] < 0.75
    result.save(tmp_path / "m.onnx")
    session = sardonyx.InferenceSession(tmp_path / "m.onnx")
    losses = [session.run(None, held_back[0])[0] for _ in range(2)]
    assert losses[0] == losses[1]
    saved = onnx.load(tmp_path / "m.onnx")
    norm = next(n for n in saved.graph.node if n.op_type == "BatchNormalization")
    assert not any(a.name == "training_mode" and a.i for a in norm.attribute)
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in saved.graph.initializer}
    assert np.abs(stored["mean"]).max() > 0.1
    total = np.mean([session.run(None, feeds)[0] for feeds in held_back])
    assert total == pytest.approx(result.evaluations[-1]["loss"], rel=1e-5)


def test_adapters_are_trained_and_saved(tmp_path: Path) -> None:
    model = killed.classifier()
    adapted = lora(model, ["w2"], rank=2)
    result = fit(adapted, killed.data, steps=100, optimizer=AdamW(0.02, weight_decay=0.0))
    assert result.parameters.keys() == {"w2.lora_A", "w2.lora_B"}
    assert np.mean(result.losses[-20:]) < np.mean(result.losses[:20])
    result.save(tmp_path / "a.onnx_adapter")
    adapter = sardonyx.LoraAdapter()
    adapter.Load(tmp_path / "a.onnx_adapter")
    assert np.abs(adapter._feed["w2.lora_B"]).max() > 0
    # The whole model has the trained adapter as defaults, and equals the merged one.
    result.save(tmp_path / "m.onnx")
    feeds = next(killed.data(0))
    merged = inference_form(merge(model, tmp_path / "a.onnx_adapter"))
    losses = [
        sardonyx.InferenceSession(m).run(None, feeds)[0] for m in (tmp_path / "m.onnx", merged)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    with pytest.raises(InvalidArgument, match="would be an adapter"):
        trained(epochs=1).save(tmp_path / "b.onnx_adapter")


def test_fit_accepts_a_training_step() -> None:
    step = TrainingStep(regression(), loss="loss", optimizer=SGD(0.05, 0.9), recompute="layers")
    options = {"loss": "loss", "epochs": 40, "batch_size": 4}
    result = fit(step, DATA, **options)
    assert result.step is step
    assert weights(result) == weights(trained())
    with pytest.raises(InvalidArgument, match="cannot be overridden; pass them to TrainingStep"):
        fit(step, DATA, **options, max_norm=1.0)
    assert len(fit(step, DATA, epochs=1).losses) == 1
    with pytest.raises(InvalidArgument, match="the step minimizes loss, not y"):
        fit(step, DATA, loss="y", epochs=1)


@pytest.mark.parametrize("name", ["step", "runs", "loss_scale", "w.exp_avg"])
def test_an_input_may_have_the_name_of_a_state(name: str) -> None:
    model = regression()
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    data = {name: DATA["x"], "goal": DATA["goal"]}
    options = {"loss": "loss", "epochs": 3, "optimizer": AdamW(0.05)}
    result = fit(model, data, evaluation=data, **options)
    assert result.losses == fit(regression(), DATA, **options).losses
    assert len(result.evaluations) == 3


def test_parameters_that_are_named_are_trained() -> None:
    result = trained(parameters=["b"])
    assert list(result.parameters) == ["b"]


def test_a_curve_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Fail, match=r"the curve cannot be written .*none/loss.svg: No such"):
        trained(steps=1).save_curve(tmp_path / "none" / "loss.svg")


def test_the_curve_is_an_image(tmp_path: Path) -> None:
    trained(evaluation=DATA).save_curve(tmp_path / "loss.svg", "a < b")
    root = ET.parse(tmp_path / "loss.svg").getroot()
    lines = [e.get("points", "").split() for e in root if e.tag.endswith("polyline")]
    assert [len(line) for line in lines] == [120, 120, 40]
    heights = [float(point.split(",")[1]) for point in lines[0]]
    assert heights[0] < heights[-1]  # y grows downward: the loss falls


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("losses", "evaluated", "points"),
    [
        ([], [], [0, 0]),
        ([1.0], [], [1, 1]),
        ([NAN, 2.0], [], [1, 1]),
        ([2.0, INF, 3.0, -INF], [1.0, NAN, INF], [2, 2, 1]),
        ([NAN, NAN], [NAN, NAN], [0, 0, 0]),
        ([1e308, -1e308, 1e308], [-1e308], [3, 3, 1]),
        ([3.0] * 5000, [], [1000, 1000]),
        ([NAN, *[3.0] * 4999], [], [1000, 1000]),
    ],
)
def test_curves_of_any_losses(
    losses: list[float], evaluated: list[float], points: list[int]
) -> None:
    text = loss_curve(losses, [{"step": i + 1, "loss": v} for i, v in enumerate(evaluated)])
    assert not re.search(r"nan|\binf\b", text)
    lines = [e for e in ET.fromstring(text) if e.tag.endswith("polyline")]
    assert [len(e.get("points", "").split()) for e in lines] == points


def test_killed_runs_end_as_one_that_was_not(tmp_path: Path) -> None:
    assert killed.check(tmp_path, kills=3, seed=1).startswith("3 kills")

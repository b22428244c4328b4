"""The training loop: its data, its end, evaluation, checkpoints, interruption and resumption."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.base import progress
from sardonyx.errors import Fail, InvalidArgument, SardonyxError
from sardonyx.ops.random.streams import generator
from sardonyx.train.batches import Batches, BatchOptions, Data
from sardonyx.train.checkpoint import CheckpointFolder
from sardonyx.train.evaluation import Evaluation
from sardonyx.train.loop import Loop, LoopOptions
from tests.train.plain_step import DATA, PlainStep, regression

NAMES = ["x", "goal"]


def batches(data: Data = DATA, **options: Any) -> Batches:
    if data is DATA:
        options = {"batch_size": 4} | options
    return Batches(data, NAMES, BatchOptions(**options))


def loop(data: Data = DATA, folder: Path | None = None, **options: Any) -> Loop:
    options = {"loss": "loss"} | options
    if "epochs" not in options and "steps" not in options:
        options["epochs"] = 4
    evaluates, on_step = options.pop("evaluates", False), options.pop("on_step", None)
    metrics = {"error": lambda out, fed: float(np.abs(out["y"] - fed["goal"]).mean())}
    metrics = options.pop("metrics", metrics)
    evaluation = None
    if evaluates:
        evaluation = Evaluation(batches(shuffle=False, batch_size=3), "loss", metrics)
    return Loop(
        PlainStep(regression()),
        batches(data),
        LoopOptions(**options),
        evaluation,
        None if folder is None else CheckpointFolder(folder, keep=2),
        on_step,
    )


def weights(made: Loop) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in made.step.parameters.items()}


def test_arrays_become_shuffled_batches() -> None:
    made = batches()
    assert made.count == 3
    epochs = [[f["x"].tolist() for f in made.epoch(e)] for e in (0, 1, 0)]
    assert epochs[0] == epochs[2] != epochs[1]
    assert [len(b) for b in epochs[0]] == [4, 4, 2]
    assert sorted(r for b in epochs[0] for r in b) == sorted(DATA["x"].tolist())
    pairs = np.concatenate([np.c_[f["x"], f["goal"]] for f in made.epoch(3)])
    assert sorted(pairs.tolist()) == sorted(np.c_[DATA["x"], DATA["goal"]].tolist())


def test_a_later_start_skips_what_was_seen() -> None:
    made = batches(seed=3)
    whole = [f["x"].tolist() for f in made.epoch(2)]
    assert [f["x"].tolist() for f in made.epoch(2, skip=2)] == whole[2:]


def test_the_last_batch_may_be_left_out() -> None:
    made = batches(drop_last=True)
    assert made.count == 2
    assert [len(f["x"]) for f in made.epoch(0)] == [4, 4]


def test_no_shuffling_keeps_the_order() -> None:
    made = batches(shuffle=False)
    assert np.concatenate([f["x"] for f in made.epoch(5)]).tolist() == DATA["x"].tolist()


FEEDS = [{"x": DATA["x"][i : i + 2], "goal": DATA["goal"][i : i + 2]} for i in range(0, 10, 2)]


@pytest.mark.parametrize(
    "data",
    [
        FEEDS,
        [(f["x"], f["goal"]) for f in FEEDS],
        lambda epoch: iter(FEEDS),
        dict(enumerate(FEEDS)).values(),  # an iterable that is no sequence
    ],
)
def test_feeds_are_batches(data: Data) -> None:
    made = batches(data, shuffle=False)
    assert [f["x"].tolist() for f in made.epoch(0)] == [f["x"].tolist() for f in FEEDS]


def test_a_loader_of_torch() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    arrays = [torch.from_numpy(DATA[name]) for name in NAMES]
    loader = DataLoader(TensorDataset(*arrays), batch_size=5)
    made = loop(loader, epochs=20)
    made.run()
    assert made.total == made.state.step == 40
    assert made.state.losses[-1] < made.state.losses[0] / 4


def test_an_iterator_serves_one_epoch() -> None:
    made = loop(iter(FEEDS), epochs=1)
    made.run()
    assert made.state.step == 5
    with pytest.raises(InvalidArgument, match="data is an iterator: it can be read only once"):
        loop(iter(FEEDS), epochs=2).run()


@pytest.mark.parametrize("name", ["loss", "step"])
def test_metrics_have_names_of_their_own(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"a metric is called '{name}'"):
        Evaluation(batches(), "total", {name: lambda out, fed: 0.0})


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({"z": DATA["x"]}, {}, "the data has 'z', and the model has no such input"),
        ({"x": DATA["x"], "goal": DATA["goal"][:3]}, {}, "number of samples, got x: .10, 3., goal"),
        ({"x": np.float32(1), "goal": np.float32(1)}, {}, "number of samples"),
        ({}, {}, "no arrays"),
        ((DATA["x"],), {}, "1 arrays per batch, and the model 2 inputs: x, goal"),
        (FEEDS, {"batch_size": 2}, "batch_size is for arrays"),
        ([], {}, "no feeds"),
        (5, {}, "data is a int"),
        (None, {"batch_size": 2}, "data is a NoneType, not arrays"),
        ("data.npz", {}, "data is a str, not arrays"),
        (lambda epoch: None, {}, "given as data returns a NoneType for epoch 0"),
        (DATA, {"batch_size": -1}, "batch_size must .* got -1"),
        (DATA, {"batch_size": 0}, "batch_size must be a positive integer, got 0"),
        (DATA, {"batch_size": 2.5}, "batch_size must .* got 2.5"),
        (DATA, {"batch_size": 11, "drop_last": True}, "drop_last leaves no batch of 10 samples"),
    ],
)
def test_wrong_data(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        list(Batches(data, NAMES, BatchOptions(**options)).epoch(0))


def _raises(out: Any, fed: Any) -> float:
    raise KeyError("accuracy")


METRICS: dict[str, tuple[Any, str]] = {
    "an array": (lambda out, fed: np.ones(3), r"error returns an array \[3\], not a number"),
    "nothing": (lambda out, fed: None, "error returns None, not a number"),
    "an error": (_raises, "the metric error raises KeyError: 'accuracy'"),
}


@pytest.mark.parametrize("name", METRICS)
def test_an_error_of_a_metric_has_its_name(name: str) -> None:
    metric, said = METRICS[name]
    with pytest.raises(SardonyxError, match=said) as caught:
        loop(evaluates=True, metrics={"error": metric}).run()
    assert caught.value.where["evaluation"] == "after step 3"


def test_a_metric_is_a_function() -> None:
    metrics: Any = {"error": "mean"}
    with pytest.raises(InvalidArgument, match="the metric error is a str, not a function"):
        Evaluation(batches(), "total", metrics)


def test_an_epoch_without_batches() -> None:
    with pytest.raises(InvalidArgument, match="no batches in epoch 0"):
        loop(lambda epoch: iter(())).run()


def test_epochs_and_steps_end_the_loop() -> None:
    made = loop(epochs=4)
    made.run()
    assert (made.state.step, made.state.epoch, made.total) == (12, 4, 12)
    assert made.state.losses[-1] < made.state.losses[0] / 4
    made = loop(epochs=4, steps=7)
    made.run()
    assert (made.state.step, made.state.epoch, made.state.batch) == (7, 2, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": None}, "how long"),
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"steps": 1.5}, "steps must be a positive integer, got 1.5"),
        ({"patience": 2}, "`patience` needs data for `evaluation`"),
        ({"monitor": "accuracy"}, "monitor must be one of loss, got 'accuracy'$"),
        ({"monitor": "accuracy", "evaluates": True}, "must be one of loss, error"),
        ({"resume": True}, "needs a folder of `checkpoints`"),
        ({"save_every": 5}, "needs a folder of `checkpoints`"),
        ({"seed": "a"}, "seed must be an integer from 0 on, got 'a'"),
        ({"seed": -1}, "seed must be an integer from 0 on, got -1"),
        ({"on_step": 5}, "on_step must be a function of a report, got 5"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        loop(**options)


def test_a_seed_of_numpy(tmp_path: Path) -> None:
    loop(folder=tmp_path, steps=2, seed=np.int64(3)).run()
    resumed = loop(folder=tmp_path, steps=4, seed=3, resume=True)
    resumed.run()
    whole = loop(steps=4, seed=3)
    whole.run()
    assert weights(resumed) == weights(whole)


def test_a_learning_rate_replaces_the_optimizers() -> None:
    made = loop(lr=0.0)
    made.run()
    assert made.step.parameters["w"].tolist() == [[0], [0], [0]]
    made = loop(lr=lambda count: 0.1 / (1 + count))
    made.run()
    assert made.state.losses[-1] < made.state.losses[0]


def test_evaluation_by_epoch_and_by_step() -> None:
    made = loop(evaluates=True)
    made.run()
    assert [e["step"] for e in made.state.evaluations] == [3, 6, 9, 12]
    assert made.state.evaluations[-1]["loss"] < made.state.evaluations[0]["loss"]
    x, goal = DATA["x"], DATA["goal"]
    y = x @ made.step.parameters["w"] + made.step.parameters["b"]
    assert made.state.evaluations[-1]["error"] == pytest.approx(np.abs(y - goal).mean(), rel=1e-5)
    assert made.state.evaluations[-1]["loss"] == pytest.approx(((y - goal) ** 2).mean(), rel=1e-5)
    made = loop(evaluates=True, evaluate_every=5)
    made.run()
    assert [e["step"] for e in made.state.evaluations] == [5, 10]


@pytest.mark.parametrize(("steps", "evaluated"), [(3, [3]), (5, [3]), (6, [3, 6])])
def test_steps_that_end_with_an_epoch_are_evaluated(steps: int, evaluated: list[int]) -> None:
    for epochs in (None, 9):
        made = loop(evaluates=True, steps=steps, epochs=epochs)
        made.run()
        assert [e["step"] for e in made.state.evaluations] == evaluated
        assert made.state.step == steps


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_resumed_run_is_evaluated_as_one_that_was_not(stop: int, tmp_path: Path) -> None:
    whole = loop(evaluates=True)
    whole.run()
    loop(evaluates=True, folder=tmp_path, steps=stop).run()
    resumed = loop(evaluates=True, folder=tmp_path, resume=True)
    resumed.run()
    assert resumed.state.evaluations == whole.state.evaluations
    assert weights(resumed) == weights(whole)


def test_training_stops_early_with_the_best_parameters() -> None:
    made = loop(evaluates=True, epochs=50, lr=lambda step: 0.05 if step < 20 else 1.0)
    with pytest.raises(Fail, match="the loss is"):
        made.run()  # it diverges
    made = loop(evaluates=True, epochs=50, patience=2, lr=lambda step: 0.05 if step < 20 else 1.0)
    made.run()
    values = [e["loss"] for e in made.state.evaluations]
    assert made.state.early_stop_reason.endswith("for 2 evaluations")
    assert len(values) < 50
    x, goal = DATA["x"], DATA["goal"]
    y = x @ made.step.parameters["w"] + made.step.parameters["b"]
    assert ((y - goal) ** 2).mean() == pytest.approx(min(values), rel=1e-5)


def test_a_metric_is_maximized() -> None:
    made = loop(evaluates=True, epochs=50, patience=1, monitor="error")
    made.run()  # the error shrinks from the first evaluation on, which is worse
    assert len(made.state.evaluations) == 2


def test_nan_names_the_step(tmp_path: Path) -> None:
    feeds = [dict(f) for f in FEEDS]
    feeds[3]["x"] = feeds[3]["x"] * np.float32("nan")
    made = Loop(
        PlainStep(regression()),
        batches(feeds, shuffle=False),
        LoopOptions("loss", epochs=2, save_every=2, lr=lambda step: 0.01),
        checkpoints=CheckpointFolder(tmp_path),
    )
    with pytest.raises(Fail, match="the loss is nan") as caught:
        made.run()
    assert caught.value.where["training"] == "step 4, batch 4 of epoch 1"
    assert caught.value.where["checkpoint"].endswith("step-00000002.safetensors")
    assert "max_norm" in caught.value.where["hint"]


@pytest.mark.parametrize("stop", range(1, 12))
def test_a_resumed_run_is_the_same_to_the_bit(stop: int, tmp_path: Path) -> None:
    whole = loop(evaluates=True, evaluate_every=4)
    whole.run()
    first = loop(folder=tmp_path, steps=stop, evaluates=True, evaluate_every=4)
    first.run()
    second = loop(folder=tmp_path, resume=True, evaluates=True, evaluate_every=4)
    second.run()
    assert weights(second) == weights(whole)
    assert second.state.losses == whole.state.losses
    assert second.state.evaluations == whole.state.evaluations
    # A run that has ended, or has had more epochs, stays as it is.
    for epochs in (4, 2):
        third = loop(folder=tmp_path, resume=True, evaluates=True, evaluate_every=4, epochs=epochs)
        third.run()
        assert weights(third) == weights(whole)
        assert third.state.step == 12


def test_patience_continues_when_resumed(tmp_path: Path) -> None:
    def options(**more: Any) -> dict[str, Any]:
        rates = {"lr": lambda step: 0.05 if step < 20 else 1.0}
        return {"evaluates": True, "epochs": 50, "patience": 3, **rates, **more}

    whole = loop(**options())
    whole.run()
    loop(**options(folder=tmp_path, steps=whole.state.step - 2)).run()
    second = loop(**options(folder=tmp_path, resume=True))
    second.run()
    assert weights(second) == weights(whole)
    assert second.state.early_stop_reason == whole.state.early_stop_reason


def noisy(epoch: int) -> Iterator[Any]:
    """Feeds with noise from the global generators."""
    for feeds in FEEDS:
        noise = np.random.standard_normal(feeds["x"].shape) + random.random()
        yield feeds | {"x": (feeds["x"] + 0.01 * noise).astype(np.float32)}


@pytest.mark.parametrize("stop", [2, 5, 7])
def test_random_data_is_resumed(stop: int, tmp_path: Path) -> None:
    def seeded(**options: Any) -> Loop:
        random.seed(1)
        np.random.seed(1)
        made = loop(noisy, epochs=3, **options)
        made.run()
        return made

    whole = seeded()
    seeded(folder=tmp_path, steps=stop)
    np.random.seed(99)
    resumed = loop(noisy, folder=tmp_path, epochs=3, resume=True)
    resumed.run()
    assert weights(resumed) == weights(whole)


def test_random_ops_of_sessions_are_resumed(tmp_path: Path) -> None:
    drawn: list[float] = []

    class Drawing(PlainStep):
        def run(self, feeds: Any, lr: Any = None) -> Any:
            drawn.append(generator(None).random())
            return super().run(feeds, lr)

    def run(**options: Any) -> None:
        checkpoints = CheckpointFolder(tmp_path)
        Loop(
            Drawing(regression()),
            batches(),
            LoopOptions("loss", **options),
            checkpoints=checkpoints,
        ).run()

    run(steps=5)
    run(steps=9, resume=True)
    resumed, drawn = drawn, []
    for path in CheckpointFolder(tmp_path).steps().values():
        os.unlink(path)
    run(steps=9)
    assert resumed == drawn


def test_a_folder_with_another_run(tmp_path: Path) -> None:
    loop(folder=tmp_path, steps=2).run()
    with pytest.raises(InvalidArgument, match="already exists, from an earlier run"):
        loop(folder=tmp_path, steps=2).run()
    with pytest.raises(InvalidArgument, match="was made with 0 seed, not 1"):
        loop(folder=tmp_path, resume=True, seed=1).run()
    with pytest.raises(InvalidArgument, match="was made with 3 batches in an epoch, not 5"):
        loop(FEEDS, tmp_path, resume=True).run()
    CheckpointFolder(tmp_path, keep=1).save(99, {}, {"data": {"batches in an epoch": 3, "seed": 0}})
    with pytest.raises(InvalidArgument, match="is not a checkpoint of a training run"):
        loop(folder=tmp_path, resume=True).run()


def test_resume_without_a_checkpoint_starts(tmp_path: Path) -> None:
    made = loop(folder=tmp_path / "new", resume=True, save_every=5)
    made.run()
    assert list(CheckpointFolder(tmp_path / "new").steps()) == [10, 12]


class Interrupting(PlainStep):
    """Receives Ctrl-C in its fifth step."""

    count = 0

    def run(self, feeds: Any, lr: Any = None) -> Any:
        """One update."""
        self.count += 1
        if self.count == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return super().run(feeds, lr)


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    options = LoopOptions("loss", epochs=4)
    made = Loop(
        Interrupting(regression()), batches(), options, checkpoints=CheckpointFolder(tmp_path)
    )
    message = r"interrupted after step 5, and saved as .*step-00000005.*resume=True"
    with pytest.raises(KeyboardInterrupt, match=message):
        made.run()
    assert signal.getsignal(signal.SIGINT) is before
    whole = loop()
    whole.run()
    resumed = loop(folder=tmp_path, resume=True)
    resumed.run()
    assert weights(resumed) == weights(whole)
    with pytest.raises(KeyboardInterrupt, match="its progress is lost"):
        Loop(Interrupting(regression()), batches(), options).run()


def test_ctrl_c_while_the_last_epoch_is_evaluated(tmp_path: Path) -> None:
    class Evaluating(PlainStep):
        def to_model(self) -> Any:
            if self.state["step"] == 6:
                os.kill(os.getpid(), signal.SIGINT)
            return super().to_model()

    evaluation = Evaluation(batches(shuffle=False), "loss", {})
    for epochs in (2, 4):
        made = Loop(
            Evaluating(regression()),
            batches(),
            LoopOptions("loss", epochs=epochs),
            evaluation,
            CheckpointFolder(tmp_path / str(epochs)),
        )
        with pytest.raises(KeyboardInterrupt, match="after step 6, and saved as"):
            made.run()
        assert len(made.state.evaluations) == 2


def test_a_second_ctrl_c_stops_at_once() -> None:
    class Twice(Interrupting):
        def run(self, feeds: Any, lr: Any = None) -> Any:
            if self.count == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return super().run(feeds, lr)

    with pytest.raises(KeyboardInterrupt) as caught:
        Loop(Twice(regression()), batches(), LoopOptions("loss", epochs=4)).run()
    assert not caught.value.args


def test_other_threads_train_too() -> None:
    made = loop()
    thread = threading.Thread(target=made.run)
    thread.start()
    thread.join()
    assert made.state.step == 12


def test_progress_is_reported() -> None:
    shown: list[tuple[int, int, str]] = []

    class Recorder:
        def update(self, done: int, total: int, amount: str = "") -> None:
            shown.append((done, total, amount))

    reports: list[Any] = []
    made = loop()
    made._on_step = reports.append
    with progress.use_display(lambda _: contextlib.nullcontext(Recorder())):
        made.run()
    assert [(done, total) for done, total, _ in shown] == [(i, 12) for i in range(1, 13)]
    assert shown[0][2].startswith("step 1 of 12, loss ")
    assert "samples/s" in shown[0][2]
    assert shown[-1][2].endswith("0.00 µs left")
    assert [r.epoch for r in reports] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert all(r.memory_bytes > 1e6 and r.samples_per_s > 0 for r in reports)
    assert reports[3].loss == made.state.losses[3]
    assert not any(math.isnan(r.seconds_left) for r in reports)

"""`sardonyx train`: what it trains, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.cli import main
from sardonyx.models import DIGITS, SAMPLES
from tests.train.plain_step import DATA, regression


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a regression, and with arrays for the built-in classifier."""
    monkeypatch.chdir(tmp_path)
    onnx.save(regression(), "model.onnx")
    np.savez("data.npz", **DATA)
    with np.load(SAMPLES) as samples:
        np.savez("digits.npz", image=samples["image"], labels=samples["label"])
    return tmp_path


def test_a_model_is_trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--loss loss --epochs 100 --batch-size 5 --lr 0.1 --evaluation data.npz --curve c.svg"
    assert main(["train", "model.onnx", "data.npz", *words.split(), "-o", "out.onnx"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("200 steps, 4 trained numbers, loss ")
    assert "step 200: loss" in text
    assert "wrote out.onnx" in text
    assert (folder / "c.svg").read_text().startswith("<svg")
    y = sardonyx.InferenceSession("out.onnx").run(["y"], DATA)[0]
    assert np.abs(y - DATA["goal"]).max() < 0.2


def test_a_loss_and_adapters_are_added(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--cross-entropy probabilities --lora classes.* --rank 2 --steps 3 --json"
    command = ["train", str(DIGITS), "digits.npz", *words.split(), "-o", "a.onnx_adapter"]
    assert main(command) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["losses"]) == 3
    assert facts["parameters"] == ["classes.weight.lora_A", "classes.weight.lora_B"]
    sardonyx.LoraAdapter().Load(folder / "a.onnx_adapter")


def test_checkpoints_continue(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def losses(*words: str) -> list[float]:
        command = ["train", "model.onnx", "data.npz", "--loss", "loss", "--batch-size", "5"]
        assert main([*command, "--json", *words]) == 0
        found: list[float] = json.loads(capsys.readouterr().out)["losses"]
        return found

    whole = losses("--epochs", "4")
    losses("--epochs", "4", "--steps", "3", "--checkpoints", "run")
    assert losses("--epochs", "4", "--checkpoints", "run", "--resume") == whole


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model.onnx none.npz", "there is no file none.npz"),
        ("model.onnx model.onnx", "model.onnx cannot be read as arrays"),
        ("none.onnx data.npz", "there is no file"),
        ("model.onnx data.npz --loss loss --mse y", "exclude each other"),
        ("model.onnx data.npz --lora w --parameters w", "leave out --parameters"),
        ("model.onnx data.npz -o a.onnx_adapter", "name its targets by --lora"),
        ("model.onnx data.npz -o model.onnx", "is read by this command"),
        ("model.onnx data.npz -o data.npz", "data.npz is read by this command"),
        ("model.onnx data.npz --evaluation e.npz -o e.npz", "e.npz is read by this command"),
        ("model.onnx data.npz --evaluation e.npz --curve e.npz", "e.npz is read by this command"),
        ("model.onnx data.npz -o model.onnx.pack", "model.onnx.pack is read by this command"),
        ("large.onnx data.npz -o large.bin", "large.bin is read by this command"),
        ("large.onnx data.npz --curve large.bin", "large.bin is read by this command"),
        ("both.onnx data.npz -o t.onnx", "t.onnx.data is read by this command"),
        ("model.onnx data.npz -o t.svg --curve t.svg", "t.svg is named for two outputs"),
        ("model.onnx data.npz -o t.svg --curve ./a/../t.svg", "t.svg is named for two outputs"),
        (
            "model.onnx data.npz --loss loss --resume",
            "--resume needs a folder of --checkpoints",
        ),
        ("model.onnx data.npz --loss loss --patience 2", "--patience needs data for --evaluation"),
        ("model.onnx bad.npz --loss loss", "clip gradients by --max-norm"),
        ("model.onnx bad.npz --loss loss", "none; pass a folder as --checkpoints"),
        ("model.onnx data.npz --loss y", "hint    reduce it in the model\n"),
        ("model.onnx digits.npz --loss loss", "the data has 'image'"),
        ("model.onnx data.npz", "2 outputs: loss, y\n  hint    name the one to minimize by --loss"),
        ("model.onnx data.npz --loss loss --checkpoints old", "pass --resume to continue it"),
        ("model.onnx data.npz --loss loss --checkpoints data.npz", "a file is in its place"),
        ("model.onnx data.npz --lr x", "'x' is not a rate"),
    ],
)
def test_wrong_arguments(
    words: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a").mkdir()
    np.savez("e.npz", **DATA)
    np.savez("bad.npz", **(DATA | {"x": DATA["x"] * np.float32("nan")}))
    (folder / "old").mkdir()
    (folder / "old" / "step-00000001.safetensors").write_bytes(b"")
    (folder / "model.onnx.pack").write_bytes(b"")
    for model, weights in (("large.onnx", "large.bin"), ("both.onnx", "t.onnx.data")):
        where = {"save_as_external_data": True, "location": weights, "size_threshold": 0}
        onnx.save(regression(), model, **where)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert main(["train", *words.split()]) in (1, 2)
    assert said in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_interruption_says_how_to_resume(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt("interrupted after step 5: fit(..., resume=True) continues")

    monkeypatch.setattr("sardonyx.cli.train.fit", interrupted)
    assert main(["train", "model.onnx", "data.npz", "--loss", "loss"]) == 130
    assert "interrupted after step 5: --resume continues" in capsys.readouterr().err


def test_the_trained_model_is_ready_for_inference(folder: Path) -> None:
    words = "--cross-entropy probabilities --parameters classes.* --epochs 2 -o out.onnx"
    assert main(["train", str(DIGITS), "digits.npz", *words.split()]) == 0
    session, before = (sardonyx.InferenceSession(m) for m in ("out.onnx", DIGITS))
    assert [i.name for i in session.get_inputs()] == [i.name for i in before.get_inputs()]
    assert [o.name for o in session.get_outputs()] == [o.name for o in before.get_outputs()]
    feeds = {"image": np.load("digits.npz")["image"]}
    (found,), (plain,) = session.run(None, feeds), before.run(None, feeds)
    assert (found != plain).any()

"""`sardonyx quantize`: its options, its report, and what it refuses."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.cli import main
from sardonyx.models import DIGITS, SAMPLES
from sardonyx.quantization.search.journal import Journal

_ANY_SPEED = ["--min-speedup", "0"]


def quantize(out: pathlib.Path, *options: str) -> int:
    return main(["quantize", str(DIGITS), "--data", str(SAMPLES), "-o", str(out), *options])


def test_report(tmp_path: pathlib.Path, capsys: Any) -> None:
    out, page = tmp_path / "q.onnx", tmp_path / "q.html"
    assert quantize(out, "--max-loss", "5%", *_ANY_SPEED, "--top", "2", "--html", str(page)) == 0
    printed = capsys.readouterr().out
    for words in (
        "digits.onnx  5 samples calibrate, 5 check",
        "accuracy lost; at most 5.000%",
        "x as fast",
        "x smaller",
        "3 quantized, 0 in floats",
        "1 more layer with smaller errors",
        "chosen: checked on samples that were held out",
        "no change in 5 rows still allows for one in 60.0% of all; 60 would show 5.00%",
        f"the report is in {page}",
    ):
        assert words in printed
    assert page.read_text().startswith("<!doctype html>")
    images = np.load(SAMPLES)["image"]
    assert sardonyx.InferenceSession(out).run(None, {"image": images})[0].shape == (10, 10)


def test_json(tmp_path: pathlib.Path, capsys: Any) -> None:
    out = tmp_path / "q.onnx"
    assert quantize(out, "--max-loss", "0.05", *_ANY_SPEED, "--metric", "error", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["output"], facts["metric"], facts["max_loss"]) == (str(out), "error", 0.05)
    assert facts["loss"] <= 0.05
    assert facts["speed"]["speedup"] > 0
    assert {"error", "bytes_before", "seconds_after", "choice", "why"} <= facts["layers"][0].keys()


def test_default_output(tmp_path: pathlib.Path, capsys: Any) -> None:
    model = tmp_path / "digits.onnx"
    model.write_bytes(DIGITS.read_bytes())
    arguments = ["quantize", str(model), "--data", str(SAMPLES), "--max-loss", "5%", *_ANY_SPEED]
    assert main(arguments) == 0
    assert (tmp_path / "digits.quantized.onnx").exists()


@pytest.mark.parametrize("as_json", [False, True])
def test_refusal(tmp_path: pathlib.Path, capsys: Any, as_json: bool) -> None:
    out, page = tmp_path / "q.onnx", tmp_path / "q.html"
    options = ["--min-speedup", "900", "--html", str(page), *(["--json"] if as_json else [])]
    assert quantize(out, *options) == 1
    printed = capsys.readouterr()
    assert not out.exists()
    assert "no 8-bit model loses at most 0.50%" in printed.err
    assert "--min-speedup gets one: the fastest has" in printed.err
    assert "No model was written" in page.read_text()
    if as_json:
        assert json.loads(printed.out)["output"] is None
    else:
        assert "too slow" in printed.out


def test_interruption(tmp_path: pathlib.Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = Journal.remembered

    def stopping(self: Journal, key: str, compute: Any) -> Any:
        if key.startswith("loss"):
            raise KeyboardInterrupt
        return remembered(self, key, compute)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remembered", stopping)
        assert quantize(tmp_path / "q.onnx", "--max-loss", "5%", *_ANY_SPEED) == 130
    assert "the same command continues from here" in capsys.readouterr().err
    assert quantize(tmp_path / "q.onnx", "--max-loss", "5%", *_ANY_SPEED) == 0
    assert "of an earlier search were used again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-loss", "much"], "is not a share such as 0.5%"),
        (["--max-loss", "5"], "'5' is 500%: write 5%, or less than 1"),
        (["--bits", "4,5"], "is not among 2, 3, 4 and 8 bits"),
        (["--labels", "right"], "has no array right"),
        (["--work", "/proc/nothing"], "choose another folder with --work"),
        (["--batch-size", "3", "--html", "nowhere/q.html"], "there is no folder nowhere"),
    ],
)
def test_wrong_usage(tmp_path: pathlib.Path, capsys: Any, options: list[str], words: str) -> None:
    assert quantize(tmp_path / "q.onnx", *options) in (1, 2)
    assert words in capsys.readouterr().err

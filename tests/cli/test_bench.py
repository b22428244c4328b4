"""`sardonyx bench`, with a rival made for the test."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from sardonyx.cli import bench, main
from sardonyx.cli.measure import difference
from tests.cli import models

QUICK = ["--rounds", "2", "--seconds", "0", "--starts", "1", "--threads", "1"]
RIVAL = """
import os, sys
from sardonyx import InferenceSession as _Session, SessionOptions

class InferenceSession(_Session):
    def run(self, names, feed):
        print("noise on standard output")
        return [r + {gap} for r in super().run(names, feed)]
"""
BROKEN = """
from sardonyx import SessionOptions

def InferenceSession(*args, **kwargs):
    raise RuntimeError("cannot do this\\nsecond line")
"""
OPENVINO = """
from sardonyx import InferenceSession

class Core:
    def read_model(self, path):
        return path

    def compile_model(self, path, device, hints):
        assert device == "CPU" and hints["INFERENCE_PRECISION_HINT"] == "f32"
        assert hints["INFERENCE_NUM_THREADS"] == 1
        return Compiled(InferenceSession(path))

class Input:
    def __init__(self, name):
        self.name = name

    def get_names(self):
        return {self.name, self.name + ":0"}

class Compiled:
    def __init__(self, session):
        self.session = session
        self.inputs = [Input(i.name) for i in session.get_inputs()]

    def create_infer_request(self):
        return self

    def infer(self, feed, share_inputs, share_outputs):
        named = {self.inputs[i].name: x for i, x in feed.items()}
        return dict(enumerate(self.session.run(None, named)))
"""
DEAD = """
import os, sys
print("last words", file=sys.stderr, flush=True)
os._exit(7)
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rival_a.py").write_text(RIVAL.format(gap=0))
    (tmp_path / "rival_b.py").write_text(BROKEN)
    (tmp_path / "rival_c.py").write_text(DEAD)
    return tmp_path


def test_table(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [models.sums(folder / "m.onnx"), models.sums(folder / "n.onnx")]
    assert main(["bench", *paths, "--rivals", "rival_a", *QUICK]) == 0
    said = capsys.readouterr().out
    for word in (
        "m.onnx",
        "n.onnx",
        "latency",
        "start",
        "memory",
        "rival_a",
        "0.0e+00",
        "x as long",
        "above 1x sardonyx is faster",
        "geometric mean of 2 models",
    ):
        assert word in said


def test_openvino(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has an interface of its own, and is among the rivals that are looked for."""
    (folder / "openvino.py").write_text(OPENVINO)
    path = models.sums(folder / "m.onnx")
    assert main(["bench", path, "--rivals", "openvino", *QUICK, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["runtimes"]["openvino"]["differs"] == 0
    provider = ["--provider", "cpu"]
    assert main(["bench", path, "--rivals", "openvino", *QUICK, *provider, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["runtimes"]["openvino"] == {
        "error": "RuntimeError: it is measured only on the CPU"
    }


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        (("rival_a", "rival_b"), "sardonyx against rival_a, rival_b; 1 thread;"),
        (("rival_a", "no_such"), "faster; no_such is not installed"),
    ],
)
def test_known_rivals(
    folder: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    installed: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setattr(bench, "KNOWN", installed)
    assert main(["bench", models.sums(folder / "m.onnx"), *QUICK]) == 0
    assert said in capsys.readouterr().out


def test_models_with_equal_names(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name in ("a", "b"):
        (folder / name).mkdir()
        paths.append(models.sums(folder / name / "model.onnx"))
    assert main(["bench", *paths, "--rivals", "", *QUICK]) == 0
    said = capsys.readouterr().out
    assert "a/model.onnx" in said
    assert "b/model.onnx" in said
    assert str(folder) not in said
    found = bench.short_paths(["/x/a/m.onnx", "/y/a/m.onnx", "/y/n.onnx", "/x/../y/n.onnx"])
    assert list(found.values()) == ["x/a/m.onnx", "y/a/m.onnx", "n.onnx", "n.onnx"]


def test_one_model_has_no_mean(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [models.sums(folder / "m.onnx"), str(folder / "none.onnx")]
    assert main(["bench", *paths, "--rivals", "rival_a", *QUICK]) == 1
    assert "geometric" not in capsys.readouterr().out


def test_json_with_rivals_that_fail(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.sums(folder / "m.onnx")
    rivals = "rival_a,rival_b,rival_c"
    assert main(["bench", path, "--rivals", rivals, *QUICK, "--json", "--dims", "batch=2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["threads"] == 1
    (model,) = said["models"]
    rows = model["runtimes"]
    times = {"latency_s", "rounds_s", "start_s", "starts_s"}
    assert times | {"start_bytes", "run_bytes"} == rows["sardonyx"].keys()
    assert rows["rival_a"]["differs"] == 0
    assert rows["rival_b"] == {"error": "RuntimeError: cannot do this"}
    assert rows["rival_c"] == {"error": "its process ended with status 7: last words"}


def test_a_model_that_fails_does_not_stop_the_others(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(folder / "none.onnx"), models.sums(folder / "m.onnx")]
    assert main(["bench", *paths, "--rivals", "", *QUICK]) == 1
    said = capsys.readouterr().out
    assert "there is no file" in said
    assert "latency" in said


def test_unknown_rival(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "m.onnx", "--rivals", "no_such_runtime"]) == 2
    said = capsys.readouterr().err
    assert "no_such_runtime is not installed" in said
    assert "known are onnxruntime, openvino" in said
    assert main(["bench", "m.onnx", "--rivals", "torch"]) == 2
    assert "torch cannot run ONNX files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ours", "theirs", "gap"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 1.0], 0.5),
        ([1.0, 2.0], [1.0], math.inf),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.nan], [1.0, 2.0], math.inf),
        ([1.0, 2.0], [1.0, np.inf], math.inf),
        (["a"], ["a"], 0.0),
        (["a"], ["b"], math.inf),
        ([], [], 0.0),
    ],
)
def test_difference(ours: Any, theirs: Any, gap: float) -> None:
    assert difference(np.array(ours), np.array(theirs)) == gap

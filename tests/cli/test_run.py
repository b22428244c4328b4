"""`sardonyx run`."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from sardonyx.cli import main
from sardonyx.models import DIGITS
from tests.cli import models

QUICK = ["--seconds", "0"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    """The JSON that a run prints."""
    assert main(["run", *argv, *QUICK, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out)


def test_digits_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK]) == 0
    said = capsys.readouterr().out
    assert "10 of 10 samples right" in said
    assert "█" in said
    assert "\x1b" not in said
    for word in ("latency", "start", "memory", "right", "%"):
        assert word in said


def test_digits_json(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys)
    assert (said["samples"], said["right"]) == (10, 10)
    assert [a["answer"] for a in said["answers"]] == list(range(10))
    assert {"latency", "start", "memory", "python_steps"} <= said.keys()


def test_digits_take_no_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--dims", "batch=2"]) == 2
    assert "--dims needs a MODEL" in capsys.readouterr().err


def test_generated_inputs(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, models.sums(tmp_path / "m.onnx"), "--dims", "batch=4")
    assert said["inputs_from"] == "generated"
    assert [i["shape"] for i in said["inputs"]] == [[4, 3], [4, 3]]
    (total,) = said["outputs"]
    assert (total["name"], total["type"], total["shape"]) == ("total", "float32", [4, 3])
    assert total["min"] <= total["mean"] <= total["max"]
    assert len(total["first"]) == 5
    assert said["latency"]["runs"] >= 1
    assert "load" in said["start"]["stages"]


def test_a_given_shape_sets_dims_of_all_inputs(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(capsys, models.sums(tmp_path / "m.onnx"), "--shapes", "x=5x3")
    assert said["outputs"][0]["shape"] == [5, 3]


def test_formulas_as_dims(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, models.grown(tmp_path / "m.onnx"), "--dims", "past_length=6")
    assert [i["shape"] for i in said["inputs"]] == [[6], [7]]


def test_generated_strings_and_integers(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(capsys, models.texts(tmp_path / "m.onnx"), "--dims", "n_words=2")
    same, twice = said["outputs"]
    assert (same["type"], same["first"]) == ("string", ["a", "a"])
    assert twice["first"][0] in (0, 2)


def test_files(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.sums(tmp_path / "m.onnx")
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), 10, np.float32)
    np.savez(tmp_path / "in.npz", x=x, y=y)
    trace = tmp_path / "trace.json"
    argv = ["--inputs", str(tmp_path / "in.npz"), "--outputs", str(tmp_path / "out.npz")]
    assert main(["run", path, *argv, "--profile", str(trace), *QUICK]) == 0
    assert "written to" in capsys.readouterr().out
    with np.load(tmp_path / "out.npz") as saved:
        np.testing.assert_array_equal(saved["total"], x + y * [1, 2, 3])
    events = json.loads(trace.read_text())
    assert {e["cat"] for e in events} == {"Session", "Node"}
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "in.npz",
        "m.onnx",
        "out.npz",
        "trace.json",
    ]


def test_input_files_beside_the_model(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.sums(tmp_path / "m.onnx")
    zeros = np.zeros((2, 3), np.float32)
    np.savez(tmp_path / "m.npz", x=zeros, y=zeros, label=zeros)
    said = run(capsys, path)
    assert said["inputs_from"] == str(tmp_path / "m.npz")
    assert said["outputs"][0]["max"] == 0


def test_strings_from_files(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.texts(tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", word=np.array(["ä", "b"]), n=np.int64(4))
    out = tmp_path / "out.npz"
    run(capsys, path, "--inputs", str(tmp_path / "in.npz"), "--outputs", str(out))
    with np.load(out) as saved:
        assert saved["same"].tolist() == ["ä", "b"]
        assert saved["twice"] == 8


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.ones((2, 4), np.float32)}, "lacks the inputs y"),
        (
            {"x": np.ones((2, 4), np.float32), "y": np.ones((2, 4), np.float32)},
            "has 4 in dim 1, but the model expects 3",
        ),
        (
            {"x": np.ones((2, 3)), "y": np.ones((2, 3), np.float32)},
            "Unexpected input data type",
        ),
        (
            {n: np.ones((2, 3), np.float32) for n in ("x", "y", "z")},
            "Invalid input name: z",
        ),
    ],
)
def test_wrong_inputs(
    arrays: dict[str, Any], says: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.sums(tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", **arrays)
    assert main(["run", path, "--inputs", str(tmp_path / "in.npz")]) == 1
    said = capsys.readouterr()
    assert says in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--dims", "width=2"], "the symbolic dims of the inputs are batch"),
        (["--shapes", "z=2"], "the inputs are x, y"),
        (["--shapes", "x=2x4"], "the model declares ['batch', 3]"),
        (["--shapes", "x=2"], "the model declares ['batch', 3]"),
        (["--shapes", "x=2x3,y=5x3"], "batch is 2 elsewhere"),
        (["--inputs", "in.npz", "--dims", "batch=1"], "leave out --inputs"),
        (["--outputs", "no/such/out.npz"], "there is no folder no/such"),
        (["--outputs", "."], "is a folder"),
        (["--outputs", "o.npz", "--profile", "o.npz"], "o.npz is named for two outputs"),
        (["--profile", "/dev/null"], "is not a regular file"),
    ],
)
def test_arguments_that_do_not_fit(
    argv: list[str], says: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", models.sums(tmp_path / "m.onnx"), *argv]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "sardonyx run --help" in said


def test_huge_inputs_are_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.sums(tmp_path / "m.onnx")
    assert main(["run", path, "--dims", "batch=1000000000000"]) == 1
    assert "takes 12000000000000 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x93NUMPY"])
def test_broken_inputs(
    content: bytes, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.sums(tmp_path / "m.onnx")
    (tmp_path / "in.npz").write_bytes(content)
    assert main(["run", path, "--inputs", str(tmp_path / "in.npz")]) == 1
    assert "cannot be read as arrays" in capsys.readouterr().err


def test_text_output(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", models.sums(tmp_path / "m.onnx"), *QUICK]) == 0
    said = capsys.readouterr().out
    for word in ("generated", "total", "float32", "[1, 3]", "min", "mean", "latency", "memory"):
        assert word in said


def test_the_built_in_model_is_small() -> None:
    assert DIGITS.stat().st_size < 120_000

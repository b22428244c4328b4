"""`sardonyx trace`: the values that it saves, and their statistics."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from onnx import helper

from sardonyx.cli import main
from sardonyx.cli.compare import search
from sardonyx.cli.trace import statistics
from tests.cli.models import save, sums, tensor


@pytest.mark.parametrize("limit", [1, search.MIN_GROUP_BYTES], ids=["one by one", "at once"])
def test_every_value_is_saved(
    limit: int, tmp_path: pathlib.Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MIN_GROUP_BYTES", limit)
    path, inputs, out = sums(tmp_path / "m.onnx"), tmp_path / "x.npz", tmp_path / "values.npz"
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)
    np.savez(inputs, x=x, y=y)
    assert main(["trace", path, "--inputs", str(inputs), "-o", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["values"]
    assert [(row["name"], row["op"], row["max"]) for row in rows] == [
        ("scaled", "Mul", 6),
        ("total", "Add", 7),
    ]
    with np.load(out) as values:
        np.testing.assert_array_equal(values["scaled"], y * [1, 2, 3])
        np.testing.assert_array_equal(values["total"], x + y * [1, 2, 3])


def test_a_folder_of_some_values(tmp_path: pathlib.Path, capsys: Any) -> None:
    path, out = sums(tmp_path / "m.onnx"), tmp_path / "values"
    assert main(["trace", path, "--nodes", "add*", "-o", str(out)]) == 0
    assert [file.name for file in out.iterdir()] == ["total.npy"]
    assert "total" in capsys.readouterr().out


def test_names_that_no_file_can_have(tmp_path: pathlib.Path) -> None:
    """Long ones, of which the end is kept; paths; names that would be those of one file."""
    names = ["ä" * 200 + "/1", "ä" * 200 + "/2", "../up", "__up", "?up"]
    nodes = [helper.make_node("Relu", ["x"], [name]) for name in names]
    outputs = [tensor(name, [3]) for name in names]
    path = save(tmp_path / "m.onnx", nodes, [tensor("x", [3])], outputs)
    assert main(["trace", path, "-o", str(tmp_path / "values")]) == 0
    written = {file.stem for file in (tmp_path / "values").iterdir()}
    assert written == {"ä" * 99 + "_1", "ä" * 99 + "_2", "_up", "__up", "_up_1"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--nodes", "nothing"], "--nodes matches no node"),
        (["--inputs", "x.npz", "-o", "x.npz"], "is read by this command"),
        (["-o", "m.onnx"], "m.onnx is a file: name a folder"),
    ],
)
def test_refusals(
    options: list[str],
    text: str,
    tmp_path: pathlib.Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.ones((1, 3), np.float32), y=np.ones((1, 3), np.float32))
    assert main(["trace", sums(tmp_path / "m.onnx"), *options]) == 2
    assert text in capsys.readouterr().err


def test_statistics_are_of_finite_elements() -> None:
    facts = statistics(np.array([np.nan, np.inf, 1, 3], np.float32))
    assert facts == {
        "type": "float32", "shape": [4], "nan": 1, "inf": 1, "min": 1, "max": 3, "mean": 2,
    }  # fmt: skip
    assert "mean" not in statistics(np.zeros((0, 2), np.float32))

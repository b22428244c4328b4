"""`sardonyx optimize`: what it writes, and what it refuses to write over."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from sardonyx.cli import main
from tests.cli.models import save, tensor
from tests.pack.packs import external


def foldable(path: pathlib.Path) -> str:
    """x W + c, with a constant that can be folded."""
    weight = np.arange(1024, dtype=np.float32).reshape(32, 32)
    nodes = [
        helper.make_node("Neg", ["w"], ["negated"]),
        helper.make_node("MatMul", ["x", "negated"], ["product"]),
        helper.make_node("Add", ["product", "c"], ["y"]),
    ]
    weights = [("w", weight), ("c", np.ones(32, np.float32))]
    return save(path, nodes, [tensor("x", [2, 32])], [tensor("y", [2, 32])], weights)


@pytest.mark.parametrize(("level", "n_nodes"), [("none", 3), ("basic", 2), ("all", 1)])
@pytest.mark.parametrize("data", [None, "weights.bin"])
def test_the_optimized_model_is_saved(
    level: str, n_nodes: int, data: str | None, tmp_path: pathlib.Path, capsys: Any
) -> None:
    path, out = foldable(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    options = [] if data is None else ["--external-data", data]
    assert main(["optimize", path, "-o", str(out), "--level", level, *options, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["nodes_before"] == 3
    assert facts["nodes_after"] == len(onnx.load(out).graph.node) <= n_nodes
    assert (tmp_path / "weights.bin").exists() is (data is not None)
    x = np.ones((2, 32), np.float32)
    expected, got = (onnxruntime.InferenceSession(m).run(None, {"x": x}) for m in (path, str(out)))
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [["-o", "model.onnx"], ["-o", "out.onnx", "--external-data", "model.data"], []],
    ids=["model", "data", "no output"],
)
def test_source_files_are_not_overwritten(
    options: list[str], tmp_path: pathlib.Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = external(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert main(["optimize", path, *options]) == 2
    assert ("is read by this command" if options else "needs -o") in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_ort_files_hold_their_weights(tmp_path: pathlib.Path, capsys: Any) -> None:
    path, out = foldable(tmp_path / "m.onnx"), tmp_path / "out.ort"
    assert main(["optimize", path, "-o", str(out), "--external-data", "w"]) == 2
    assert "leave out --external-data" in capsys.readouterr().err
    assert main(["optimize", path, "-o", str(out)]) == 0
    assert out.read_bytes()[4:8] == b"ORTM"

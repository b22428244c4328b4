"""`sardonyx convert`: its options, and what it prints."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import onnx
import pytest

from sardonyx.cli import main
from sardonyx.models import DIGITS
from tests.pack.packs import external


def test_types_and_sizes(tmp_path: pathlib.Path, capsys: Any) -> None:
    out = tmp_path / "half.onnx"
    options = ["--to", "float16", "--keep-io-types", "--keep-ops", "Gemm, Softmax", "--json"]
    assert main(["convert", str(DIGITS), "-o", str(out), *options, "--dims", "batch=2"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["converted_nodes"], facts["kept_nodes"], facts["added_casts"]) == (9, 2, 2)
    assert facts["files"] == {str(out): out.stat().st_size}
    model = onnx.load(out)
    onnx.checker.check_model(model, full_check=True)
    shape = model.graph.output[0].type.tensor_type.shape
    assert [d.dim_value for d in shape.dim] == [2, 10]


def test_what_is_printed(tmp_path: pathlib.Path, capsys: Any) -> None:
    out = tmp_path / "half.onnx"
    options = ["--to", "bfloat16", "--min", "0.1", "--max", "0.2", "--convert-all-ops"]
    assert main(["convert", str(DIGITS), "-o", str(out), *options]) == 0
    printed = capsys.readouterr().out
    assert "11 nodes in bfloat16, 0 in float32, 0 Casts added" in printed
    assert "too large for the type became its largest" in printed
    assert "too small for the type became its smallest" in printed
    assert "opset 22" in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "convert needs -o"),
        (["-o", "model.onnx"], "model.onnx is read by this command"),
        (["-o", "o.onnx", "--embed", "--external-data", "x"], "exclude each other"),
        (["-o", "o.onnx", "--keep-ops", "Exp"], "--keep-ops needs --to"),
        (["-o", "o.onnx", "--min", "0.1"], "--min needs --to"),
        (["-o", "nowhere/o.onnx"], "there is no folder nowhere"),
    ],
)
def test_wrong_usage(
    options: list[str],
    words: str,
    tmp_path: pathlib.Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = external(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert main(["convert", path, *options]) == 2
    assert words in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before

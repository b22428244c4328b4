"""Models saved in the .ort format: loaded by onnxruntime and here, with the same results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.save import ort_schemas
from sardonyx.save.ort_format import Weights
from tests.load.test_ort_format import FEEDS, MODELS

TOOL = Path(__file__).parents[2] / "tools" / "ort_schemas.py"


def saved(model: onnx.ModelProto, path: Path, **entries: str) -> Any:
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(path)
    for key, value in entries.items():
        options.add_session_config_entry(f"session.{key}", value)
    return sardonyx.InferenceSession(model.SerializeToString(), options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("runtime", [sardonyx, onnxruntime], ids=["here", "onnxruntime"])
def test_saved_models_run(name: str, runtime: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.ort"
    expected = saved(MODELS[name](), path).run(None, FEEDS[name])
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for a, b in zip(expected, session.run(None, FEEDS[name]), strict=True):
        if isinstance(a, list):
            assert a == b
        else:
            np.testing.assert_allclose(b, a, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("name", "entries", "is_ort"),
    [
        ("m.ort", {}, True),
        ("m.ORT", {}, True),
        ("m.onnx", {}, False),
        ("m.bin", {"save_model_format": "ORT"}, True),
        ("m.ort", {"save_model_format": "ONNX"}, False),
    ],
)
def test_the_format(name: str, entries: dict[str, str], is_ort: bool, tmp_path: Path) -> None:
    saved(MODELS["linear"](), tmp_path / name, **entries)
    assert ((tmp_path / name).read_bytes()[4:8] == b"ORTM") == is_ort


def test_types_that_the_format_lacks(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]>
    g (optional(float[n]) x) => (bool y) { y = OptionalHasElement(x) }""")
    with pytest.raises(NotImplemented, match=r"the \.ort format has no values of the type"):
        saved(model, tmp_path / "m.ort")
    assert not list(tmp_path.iterdir())


def test_files_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found before any weight is read."""
    monkeypatch.setattr(sardonyx.save, "MAX_BYTES", 16_000)
    monkeypatch.setattr(Weights, "read", None)
    with pytest.raises(InvalidArgument, match=r"file in the \.ort format holds at most 16000"):
        saved(MODELS["linear"](), tmp_path / "m.ort")
    assert not list(tmp_path.iterdir())


def test_ops_that_onnxruntime_lacks() -> None:
    with pytest.raises(NotImplemented, match=r"onnxruntime 1\.31 has no such op"):
        ort_schemas.schema_of("here", "Twice", 1)


@pytest.mark.parametrize(("opset", "since"), [(13, 13), (14, 14), (20, 14)])
def test_the_version_of_an_op(opset: int, since: int) -> None:
    assert ort_schemas.schema_of("", "Add", opset).since == since


def test_the_list_of_schemas_is_current() -> None:
    code = f"import runpy; print(*runpy.run_path({str(TOOL)!r})['lines'](), sep=chr(10))"
    command = [sys.executable, "-c", code]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    path = Path(ort_schemas.__file__).with_suffix(".txt")
    assert listed.stdout == path.read_text()


def test_there_are_no_packs(tmp_path: Path) -> None:
    from sardonyx.cli import main

    saved(MODELS["linear"](), tmp_path / "m.ort")
    assert main(["pack", str(tmp_path / "m.ort")]) != 0
    with pytest.raises(InvalidArgument, match="ONNX or ORT, got 'TFLITE'"):
        saved(MODELS["linear"](), tmp_path / "m", save_model_format="TFLITE")

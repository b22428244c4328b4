"""Saved models give what the originals give, in onnxruntime and here, at every level."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import sardonyx
from sardonyx import GraphOptimizationLevel as Level
from tests.save.models import CASES, Case

onnxruntime.set_default_logger_severity(4)


def save(model: Any, path: Path, level: Level = Level.ORT_ENABLE_ALL, **entries: str) -> Path:
    """Saves a model as it is after optimizing."""
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = level
    for key, value in entries.items():
        options.add_session_config_entry(
            f"session.optimized_model_external_initializers_{key}", value
        )
    sardonyx.InferenceSession(model, options)
    return path


def run(runtime: Any, model: Any, feeds: dict[str, Any]) -> list[Any]:
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def same(want: Any, got: Any) -> None:
    assert type(want) is type(got)
    if isinstance(want, list):
        assert len(want) == len(got)
        for w, g in zip(want, got, strict=True):
            same(w, g)
    elif want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, strict=True)
    else:
        np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("level", [level for level in Level if level != Level.ORT_ENABLE_LAYOUT])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_a_saved_model_computes_the_same(
    case: Callable[[], Case], level: Level, tmp_path: Path
) -> None:
    model, feeds = case()
    data = model.SerializeToString()
    path = save(data, tmp_path / "saved.onnx", level)
    onnx.checker.check_model(path, full_check=True)
    want = run(onnxruntime, data, feeds)
    same(want, run(onnxruntime, path, feeds))
    same(want, run(sardonyx, path, feeds))
    again = save(path, tmp_path / "again.onnx", level)
    same(want, run(onnxruntime, again, feeds))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_weights_beside_the_model(case: Callable[[], Case], tmp_path: Path) -> None:
    model, feeds = case()
    data = model.SerializeToString()
    entries = {"file_name": "weights.bin", "min_size_in_bytes": "1"}
    path = save(data, tmp_path / "saved.onnx", **entries)
    onnx.checker.check_model(path)
    want = run(onnxruntime, data, feeds)
    same(want, run(onnxruntime, path, feeds))
    same(want, run(sardonyx, path, feeds))
    inside = save(path, tmp_path / "inside.onnx")
    (tmp_path / "weights.bin").unlink(missing_ok=True)
    same(want, run(onnxruntime, inside, feeds))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_the_interface_is_kept(case: Callable[[], Case], tmp_path: Path) -> None:
    model, _ = case()
    saved = onnx.load(save(model.SerializeToString(), tmp_path / "saved.onnx"))
    constants = {t.name for t in model.graph.initializer} if model.ir_version < 4 else set()
    inputs = [v for v in model.graph.input if v.name not in constants]
    assert [v.name for v in saved.graph.input] == [v.name for v in inputs]
    assert [v.name for v in saved.graph.output] == [v.name for v in model.graph.output]
    for old, new in zip(inputs, saved.graph.input, strict=True):
        assert old.type == new.type
    for old, new in zip(model.graph.output, saved.graph.output, strict=True):
        if old.type.tensor_type.HasField("shape"):
            assert old.type == new.type


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_two_saves_are_equal(case: Callable[[], Case], tmp_path: Path) -> None:
    model, _ = case()
    data = model.SerializeToString()
    entries = {"file_name": "weights.bin", "min_size_in_bytes": "1"}
    files = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        save(data, folder / "saved.onnx", **entries)
        files.append({p.name: p.read_bytes() for p in folder.iterdir()})
    assert files[0] == files[1]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_names_are_unique(case: Callable[[], Case], tmp_path: Path) -> None:
    model, _ = case()
    saved = onnx.load(save(model.SerializeToString(), tmp_path / "saved.onnx"))
    names: list[str] = [v.name for v in saved.graph.input]
    names += [t.name for t in saved.graph.initializer if t.name not in names]
    names += _made(saved.graph)
    assert len(names) == len(set(names))
    assert "" not in names


def _made(graph: onnx.GraphProto) -> list[str]:
    made = []
    for node in graph.node:
        made += [name for name in node.output if name]
        for attribute in node.attribute:
            made += [v.name for v in attribute.g.input] + _made(attribute.g)
    return made

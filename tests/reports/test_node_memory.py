"""Memory statistics by node: session.collect_node_memory_stats_to_file."""

from __future__ import annotations

import csv
import os
import pathlib
import threading
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.ort.config_keys import session_key_warning
from sardonyx.reports.node_memory import COLUMNS, KEY


def products(path: pathlib.Path, names: tuple[str, ...] = ("first", "second", "last")) -> str:
    """x u v and (x u) w, where u, v, w have 512, 256 and 2048 bytes."""
    weights = {"u": (8, 16), "v": (16, 4), "w": (16, 32)}
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["a"], names[0]),
        helper.make_node("MatMul", ["a", "v"], ["b"], names[1]),
        helper.make_node("MatMul", ["a", "w"], ["c"], names[2]),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None) for y in "bc"],
        [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return str(path)


def collecting(value: str, module: Any = sardonyx) -> Any:
    options = module.SessionOptions()
    options.add_session_config_entry(KEY, value)
    return options


def run(session: Any, n: int) -> None:
    session.run(None, {"x": np.ones((n, 8), np.float32)})


def read(path: pathlib.Path) -> dict[str, list[int]]:
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == COLUMNS
    return {name: list(map(int, row)) for name, *row in rows}


def test_values_computed_by_hand(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "stats.csv"
    session = sardonyx.InferenceSession(products(tmp_path / "m.onnx"), collecting(str(target)))
    run(session, 4)
    found = read(target)
    # Inputs and weights count for their first reader, what is made for its maker.
    assert {name: row[:3] for name, row in found.items()} == {
        "first": [4 * 8 * 4, 512, 4 * 16 * 4],
        "second": [0, 256, 4 * 4 * 4],
        "last": [0, 2048, 4 * 32 * 4],
    }


def test_the_columns_are_those_of_onnxruntime(tmp_path: pathlib.Path) -> None:
    path, theirs, ours = products(tmp_path / "m.onnx"), tmp_path / "1.csv", tmp_path / "2.csv"
    run(onnxruntime.InferenceSession(path, collecting(str(theirs), onnxruntime)), 4)
    run(sardonyx.InferenceSession(path, collecting(str(ours))), 4)
    want = {name.rpartition("_")[0]: row for name, row in read(theirs).items()}
    got = read(ours)
    assert got.keys() == want.keys()
    assert {n: row[0] for n, row in got.items()} == {n: row[0] for n, row in want.items()}


def test_maximum_over_runs(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "stats.csv"
    session = sardonyx.InferenceSession(products(tmp_path / "m.onnx"), collecting(str(target)))
    assert not target.exists()
    for n, most in ((4, 4), (6, 6), (2, 6), (6, 6)):
        run(session, n)
        assert read(target)["last"][2] == most * 32 * 4
    target.unlink()
    run(session, 6)
    assert not target.exists()  # nothing new


def test_relative_paths_begin_at_the_model(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    path = products(tmp_path / "models" / "m.onnx")
    monkeypatch.chdir(tmp_path)
    run(sardonyx.InferenceSession(path, collecting("stats.csv")), 4)
    assert (tmp_path / "models" / "stats.csv").exists()
    run(sardonyx.InferenceSession(pathlib.Path(path).read_bytes(), collecting("here.csv")), 4)
    assert (tmp_path / "here.csv").exists()
    assert sorted(os.listdir(tmp_path)) == ["here.csv", "models"]  # no temporary file stays


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        ("", InvalidArgument, "empty"),
        ("absent/stats.csv", NoSuchFile, "no folder .*absent"),
        (".", InvalidArgument, "is a folder"),
    ],
)
def test_wrong_paths(
    value: str, error: type[Exception], match: str, tmp_path: pathlib.Path
) -> None:
    path = products(tmp_path / "m.onnx")
    with pytest.raises(error, match=match):
        sardonyx.InferenceSession(path, collecting(value))


def test_names_may_be_anything(tmp_path: pathlib.Path) -> None:
    names = ('a,"b"\n', "same", "same")
    target = tmp_path / "stats.csv"
    path = products(tmp_path / "m.onnx", names)
    run(sardonyx.InferenceSession(path, collecting(str(target))), 4)
    assert set(read(target)) == {names[0], "same", "same#2"}


def test_threads(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "stats.csv"
    session = sardonyx.InferenceSession(products(tmp_path / "m.onnx"), collecting(str(target)))
    threads = [threading.Thread(target=run, args=(session, n)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(target)["last"][2] == 8 * 32 * 4


def test_the_key_has_no_warning() -> None:
    assert session_key_warning(KEY) is None

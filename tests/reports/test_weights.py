"""Weight reports (`sardonyx info --weights`): source, layout, memory, sharing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.cli import main
from sardonyx.reports.weights import weight_layouts_of
from tests.weights import models
from tests.weights.models import ROWS, SQUARE, external, product, settled

WIDE = np.ones((192, 48), np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table at an odd offset, two names for one product's weight, a sum and a small constant."""
    (tmp_path / "w.data").write_bytes(b"\1" + ROWS.tobytes() + SQUARE.tobytes())
    at = 1 + ROWS.nbytes
    weights = [
        external("table", ROWS, "w.data", 1),
        external("w", SQUARE, "w.data", at),
        external("tied", SQUARE, "w.data", at),
        external("offset", SQUARE, "w.data", at),
        numpy_helper.from_array(np.ones(192, np.float32), "bias"),
        numpy_helper.from_array(WIDE, "down"),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"], "look"),
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("MatMul", ["a", "tied"], ["b"], "second"),
        helper.make_node("Add", ["b", "offset"], ["c"], "move"),
        helper.make_node("Mul", ["c", "bias"], ["d"], "scale"),
        helper.make_node("MatMul", ["d", "down"], ["e"], "last"),
    ]
    inputs = [models.info("i", ["N"], TensorProto.INT64), models.info("x", [192, 192])]
    made = models.model(nodes, inputs, [models.info("rows", None), models.info("e", None)], weights)
    return settled(tmp_path / "m.onnx", made)


def said(capsys: pytest.CaptureFixture[str], path: Path) -> Any:
    assert main(["info", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_weight(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, path)
    by_name = {w["name"]: w for w in found["weights"]}
    form = {name: w["forms"][0] for name, w in by_name.items() if w["forms"]}
    table = by_name["table"]
    assert (table["file"], table["offset"], table["source"]) == ("w.data", 1, "external")
    assert form["table"]["state"] == "mapped"
    assert form["table"]["layout"] == "as stored"
    assert form["table"]["nodes"] == ["look"]
    assert form["table"]["anonymous_bytes"] == 0
    assert form["w"]["state"] == "packed"
    assert form["w"]["layout"] == "packed by matmul_pack"
    assert form["w"]["same_as"] == ["tied"]
    assert form["tied"]["same_as"] == ["w"]
    assert sorted(form[n]["anonymous_bytes"] for n in ("w", "tied")) == [0, SQUARE.nbytes]
    assert (form["offset"]["layout"], form["offset"]["state"]) == ("aligned copy", "copied")
    assert form["offset"]["anonymous_bytes"] == SQUARE.nbytes
    assert form["bias"]["layout"] == "small copy"


def test_totals_are_what_a_session_takes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = said(capsys, path)["weight_memory"]
    session = sardonyx.InferenceSession(path)
    arrays = {id(a): a for a in session._compiled.program.layouts._arrays.values()}
    own = sum(a.nbytes for a in arrays.values() if a.nbytes != ROWS.nbytes)
    assert memory["anonymous_bytes"] == own
    assert memory["mapped_bytes"] == ROWS.nbytes
    assert memory["packed_bytes"] + memory["copied_bytes"] == own


def test_weights_in_a_pack_take_no_memory(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(path)]) == 0
    capsys.readouterr()
    found = said(capsys, path)
    states = {f["state"] for w in found["weights"] for f in w["forms"]}
    assert states == {"mapped"}
    assert found["weight_memory"]["anonymous_bytes"] == 0
    layouts = {f["layout"] for w in found["weights"] for f in w["forms"]}
    assert layouts == {"as stored", "packed by matmul_pack"}


def test_sessions_that_share_are_counted(path: Path) -> None:
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = 1  # else they would share all of the program
    first, second = (sardonyx.InferenceSession(path, o) for o in (None, options))
    for session in (first, second):
        for forms in weight_layouts_of(session._compiled.program).values():
            for form in forms:
                assert form.other_programs == int(form.weight.is_shared), form.layout


def test_weights_of_bodies_are_found(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"], "inside")],
        "body",
        [],
        [models.info("z", None)],
        [numpy_helper.from_array(SQUARE, "w")],
    )
    other = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"])], "other", [], [models.info("z", None)]
    )
    made = models.model(
        [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)],
        [models.info("c", [], TensorProto.BOOL), models.info("x", [192, 192])],
        [models.info("y", None)],
        [],
    )
    program = sardonyx.InferenceSession(settled(tmp_path / "m.onnx", made))._compiled.program
    (form,) = (
        f for forms in weight_layouts_of(program).values() for f in forms if f.weight.is_packed
    )
    assert [n.name for n in form.nodes] == ["inside"]


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_lists_fit_the_terminal(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["info", str(path), "--weights"]) == 0
    text = capsys.readouterr().out
    listed = text[text.index("largest weights") : text.index("where nodes run")]
    assert max(map(len, listed.splitlines())) <= columns
    for word in ("as stored", "matmul_pack", "aligned copy", "(same"):
        assert word in listed


def test_many_weights_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"w{i}" for i in range(50)]
    nodes = [helper.make_node("Mul", ["x", n], [f"y{n}"]) for n in names]
    weights = [numpy_helper.from_array(np.full(3, i, np.float32), n) for i, n in enumerate(names)]
    outputs = [models.info(f"y{n}", None) for n in names]
    made = models.model(nodes, [models.info("x", [3])], outputs, weights)
    path = settled(tmp_path / "m.onnx", made)
    assert main(["info", str(path), "--weights"]) == 0
    text = capsys.readouterr().out
    assert "30 more, 360 B, 360 B in memory: --all lists them" in text
    assert main(["info", str(path), "--weights", "--all"]) == 0
    text = capsys.readouterr().out
    assert "each weight" in text
    assert all(name in text for name in names)


def test_folded_constants_have_the_name_of_their_weight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = product()
    made.graph.node[0].input[1] = "t"
    made.graph.node.insert(0, helper.make_node("Transpose", ["w"], ["t"]))
    made.graph.node.insert(1, helper.make_node("Add", ["t", "t2"], ["sum"]))
    made.graph.node[2].input[1] = "sum"
    made.graph.initializer.append(numpy_helper.from_array(np.ones(192, np.float32), "t2"))
    rows = said(capsys, settled(tmp_path / "m.onnx", made))["weights"]
    assert rows[0]["source"] == "folded"
    assert rows[0]["name"] in ("w", "sum")

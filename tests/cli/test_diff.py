"""`sardonyx diff`: the node that it names, what it says of it, and its exit status."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx
import sardonyx._native as native
from sardonyx.cli import main
from sardonyx.cli.compare import search
from sardonyx.cli.compare.difference import difference
from sardonyx.place import No
from sardonyx.place.provider import CompiledNode
from sardonyx.providers.reference import Reference
from tests.cli.models import save, tensor


def chain(path: pathlib.Path) -> str:
    """Five nodes, each of which a fault can be put into."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], "multiply"),
        helper.make_node("Sub", ["product", "x"], ["less"], "subtract"),
        helper.make_node("Softmax", ["less"], ["soft"], "normalize", axis=1),
        helper.make_node("Cast", ["soft"], ["wide"], "widen", to=onnx.TensorProto.DOUBLE),
        helper.make_node("Exp", ["wide"], ["y"], "exponent"),
    ]
    weight = rng.standard_normal((4, 4)).astype(np.float32)
    y = tensor("y", ["n", 4], onnx.TensorProto.DOUBLE)
    return save(path, nodes, [tensor("x", ["n", 4])], [y], [("w", weight)])


def _flip(model: Any) -> None:
    array = numpy_helper.to_array(model.graph.initializer[0]).copy()
    array[1, 2] += 1e-5
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))


def _set(position: int, value: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.graph.node[position].attribute[0].i = value

    return change


def _swap(model: Any) -> None:
    inputs = model.graph.node[1].input
    inputs[0], inputs[1] = inputs[1], inputs[0]


def _replace(model: Any) -> None:
    model.graph.node[4].op_type = "Sqrt"


FAULTS = [
    (_flip, "multiply", "weight w differs first at [1, 2]"),
    (_swap, "subtract", "the operands are swapped"),
    (_set(2, 0), "normalize", "attribute axis is 1 in A, 0 in B"),
    (_set(2, 7), "normalize", "axis 7 is outside"),
    (_set(3, int(onnx.TensorProto.FLOAT16)), "widen", "attribute to is 11 in A, 10 in B"),
    (_replace, "exponent", "the op is Exp in A, Sqrt in B"),
]


@pytest.mark.parametrize("are_renamed", [False, True], ids=["named", "renamed"])
@pytest.mark.parametrize(("fault", "node", "text"), FAULTS)
def test_the_faulty_node_is_named(
    fault: Any, node: str, text: str, are_renamed: bool, tmp_path: pathlib.Path, capsys: Any
) -> None:
    path, other = chain(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    model = onnx.load(path)
    fault(model)
    if are_renamed:
        for n in model.graph.node:
            n.name = ""
        for i, n in enumerate(model.graph.node[:-1]):  # an input is named as its maker has it
            n.output[0] = f"v{i}"
        for i, n in enumerate(model.graph.node[1:]):
            n.input[:] = [name if name in ("x", "w") else f"v{i}" for name in n.input]
    onnx.save(model, other)
    status = main(["diff", path, other, "--dims", "n=3", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["first"]["node"] == node
    assert text in f"{facts['first']['changes']} {facts['first']['error']}"
    assert status == (1 if facts["differs"] else 0)
    assert main(["diff", path, other, "--dims", "n=3"]) == status
    assert f"{node} (" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--with", "onnxruntime"],
        ["--levels", "all,disable"],
        ["--precisions", "exact,bf16", "--tolerance", "0.1"],
        ["--isas", f"{native.isas[0]},{native.isa}"],
        ["--providers", "cpu,CPUExecutionProvider", "--levels", "all,basic"],
    ],
    ids=lambda o: o[0],
)
def test_two_configurations_of_one_model_are_equal(
    options: list[str], tmp_path: pathlib.Path, capsys: Any
) -> None:
    path = chain(tmp_path / "a.onnx")
    assert main(["diff", path, *options]) == 0
    assert "5 values compared" in capsys.readouterr().out


class _Wrong(Reference):
    """A provider whose only kernel adds one."""

    name = "WrongExecutionProvider"

    def claims(self, node: Any) -> Any:
        """Claim the Softmax."""
        return super().claims(node) if node.op.name == "Softmax" else No("not mine")

    def compile(self, region: Any, bodies: Any) -> Any:
        """Return calls whose results are one too large."""

        def wrong(compiled: CompiledNode) -> CompiledNode:
            call = lambda arrays, run: [a + 1 for a in compiled.call(arrays, run)]  # noqa: E731
            return CompiledNode(compiled.node, call, "wrong")

        return [wrong(compiled) for compiled in super().compile(region, bodies)]


def test_one_kernel(tmp_path: pathlib.Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = chain(tmp_path / "a.onnx")
    # Groups of a single value: the result does not depend on what is compared together.
    monkeypatch.setattr(search, "MIN_GROUP_BYTES", 1)
    sardonyx.register_provider(_Wrong.name, lambda options: _Wrong())
    try:
        assert main(["diff", path, "--providers", f"cpu,{_Wrong.name}", "--json"]) == 1
    finally:
        sardonyx.unregister_provider(_Wrong.name)
    facts = json.loads(capsys.readouterr().out)
    assert facts["first"]["node"] == "normalize"
    assert facts["first"]["max_abs"] == pytest.approx(1)


def test_nodes_without_a_counterpart(tmp_path: pathlib.Path, capsys: Any) -> None:
    path, other = chain(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    model = onnx.load(path)
    model.graph.node.insert(4, helper.make_node("Abs", ["wide"], ["absolute"], "extra"))
    model.graph.node[5].input[0] = "absolute"
    onnx.save(model, other)
    assert main(["diff", path, other, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [n["node"] for n in facts["only_b"]] == ["extra"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "nothing to compare"),
        (["--levels", "all"], "is not two names"),
        (["--levels", "all,most"], "--levels names most"),
        (["--with", "json"], "does not have onnxruntime's interface"),
        (["nowhere.onnx"], "there is no file"),
    ],
)
def test_errors_have_status_2(
    options: list[str], text: str, tmp_path: pathlib.Path, capsys: Any
) -> None:
    assert main(["diff", chain(tmp_path / "a.onnx"), *options]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], {"fraction": 0, "ulps": 0, "index": None}),
        ([1.0, -0.0], [1.0, 0.0], {"fraction": 0, "ulps": 0}),
        ([1.0, 4.0], [1.0, 3.0], {"max_abs": 1, "fraction": 0.25, "index": (1,)}),
        ([1.0], [np.nextafter(np.float32(1), np.float32(2))], {"ulps": 1}),
        ([np.nan, np.inf], [np.nan, np.inf], {"fraction": 0, "n_nonfinite": 0}),
        ([1.0, np.inf], [np.nan, -np.inf], {"n_nonfinite": 2, "index": (0,)}),
        ([], [], {"fraction": 0}),
        ([1.0], [1.0, 2.0], {"note": "shape [1] in A, [2] in B"}),
    ],
)
def test_differences(a: list[float], b: list[float], expected: dict[str, Any]) -> None:
    found = difference(np.array(a, np.float32), np.array(b, np.float32), 1e-3)
    for name, value in expected.items():
        assert getattr(found, name) == value


def test_attributes_that_are_not_a_number_are_equal(tmp_path: pathlib.Path, capsys: Any) -> None:
    node = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=float("nan"))
    paths = [save(tmp_path / name, [node], [tensor("x", [3])], [tensor("y", [3])]) for name in "ab"]
    assert main(["diff", *paths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []

"""Marks of nodes, by which orders go: kept by passes, files and packs, and never merged away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Graph
from sardonyx.graph.verify import verify
from sardonyx.load import load
from sardonyx.load.graph_text import parse, show
from sardonyx.load.source import read_model
from sardonyx.passes import lower, optimize
from sardonyx.passes.options import PassOptions
from tests.pack.packs import embedded, forged, opened, packed, uses_pack

MARKED = """\
in x: f32[B,8]
a = Exp(x)
b = Exp(x) @priority=10
c = Mul(a, b) @priority=-100 @backward
d = Neg(c) @backward
out d
"""


def marks(graph: Graph) -> list[tuple[str, int, bool]]:
    return [(n.op.name, *n.annotations) for n in graph.sorted_nodes()]


def loaded(model: onnx.ModelProto) -> Graph:
    return load(read_model(model.SerializeToString())).graph


def model_of(nodes: list[Any], **more: Any) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["B", 8])],
        [value("y", TensorProto.FLOAT, ["B", 8])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], **more)


def node(op: str, inputs: str, output: str, **metadata: str) -> onnx.NodeProto:
    made = helper.make_node(op, inputs.split(), [output])
    for key, value in metadata.items():
        made.metadata_props.add(key=f"sardonyx.{key}", value=value)
    return made


def training() -> onnx.ModelProto:
    """Exp is computed a second time for what is marked as backward."""
    return model_of(
        [
            node("Exp", "x", "a"),
            node("Exp", "x", "b", priority="10", backward="1"),
            node("Transpose", "a", "t"),
            node("MatMul", "b t", "m", backward="1"),
            node("MatMul", "m b", "y", backward="1"),
        ]
    )


def test_text_form_has_annotations() -> None:
    graph = parse(MARKED)
    verify(graph, deep=True)
    assert show(graph) == MARKED
    assert marks(graph)[1:3] == [("Exp", 10, False), ("Mul", -100, True)]


@pytest.mark.parametrize(
    ("mark", "match"),
    [
        ("@late", "there is no annotation late"),
        ("@priority", "= is expected here"),
        ("@priority=1.5", "a whole number of 32 bits, not 1.5"),
        ("@priority=4294967296", "a whole number of 32 bits"),
        ("@", "there is no annotation at the end"),
    ],
)
def test_wrong_annotations_in_text(mark: str, match: str) -> None:
    with pytest.raises(InvalidGraph, match=match):
        parse(f"in x: f32[2] y = Neg(x) {mark}")


def test_nodes_of_different_annotations_are_not_merged() -> None:
    graph = parse("""
        in x: f32[8]
        a = Exp(x)
        b = Exp(x)
        c = Exp(x) @priority=10
        d = Exp(x) @priority=10
        e = Exp(x) @backward
        y = Sum(a, b, c, d, e)
        out y
    """)
    optimize(graph, PassOptions())
    assert marks(graph)[:3] == [("Exp", 0, False), ("Exp", 10, False), ("Exp", 0, True)]
    assert len(graph.nodes) == 4


def test_fusion_respects_annotations() -> None:
    graph = parse("""
        in x: f32[4,8]
        const w: f32[8,8]
        a = Neg(x)
        b = Exp(a)
        c = Abs(b) @backward
        d = Sqrt(c) @backward
        m = MatMul(d, w)
        r = Relu(m)
        n = MatMul(r, w) @priority=10
        y = Relu(n)
        out y
    """)
    lower(graph, PassOptions())
    verify(graph)
    assert marks(graph) == [
        ("Chain", 0, False),
        ("Chain", 0, True),
        ("MatMul", 0, False),
        ("MatMul", 10, False),
        ("Relu", 0, False),
    ]


PASSED = {
    "rule": "a = Div(x, 1.4142135) e = Erf(a) s = Add(e, 1) h = Mul(x, 0.5) y = Mul(h, s)",
    "product": "m = MatMul(x, w) b = Add(m, v) y = Relu(b)",
    "attention": "k = Transpose(x, perm=[1, 0]) s = MatMul(x, k) p = Softmax(s) y = MatMul(p, x)",
    "norm": "y = LayerNormalization(x, v, v)",
    "einsum": 'y = Einsum(x, w, equation="ab,bc->ac")',
}


@pytest.mark.parametrize("text", PASSED.values(), ids=PASSED)
def test_passes_keep_annotations(text: str) -> None:
    marked = text.replace(")", ") @priority=10 @backward")
    graph = parse(f"in x: f32[8,8] const w: f32[8,8] const v: f32[8] {marked} out y")
    optimize(graph, PassOptions())
    lower(graph, PassOptions())
    verify(graph)
    assert {n.annotations for n in graph.nodes} == {(10, True)}


def test_an_inlined_branch_inherits_annotations() -> None:
    graph = parse("""
        in x: f32[8]
        y = If(true) @backward {
          then_branch: { a = Exp(x) b = Relu(a) @priority=10 out b }
          else_branch: { out x }
        }
        out y
    """)
    optimize(graph, PassOptions())
    assert marks(graph) == [("Exp", 0, True), ("Relu", 10, False)]


def test_channels_last_keeps_annotations() -> None:
    graph = parse("""
        in x: f32[1,4,9,9]
        const w: f32[4,4,3,3]
        c = Conv(x, w, kernel_shape=[3, 3]) @backward
        r = InstanceNormalization(c, [1, 1, 1, 1], [0, 0, 0, 0]) @backward
        p = MaxPool(r, kernel_shape=[2, 2]) @backward
        d = DepthToSpace(p, blocksize=2) @backward
        out d
    """)
    lower(graph, PassOptions())
    verify(graph)
    of_inputs = {n.annotations for n in graph.nodes if graph.inputs[0] in n.inputs}
    assert of_inputs == {(0, False)}  # a Transpose of the input is part of no gradient
    assert {n.annotations for n in graph.nodes if graph.inputs[0] not in n.inputs} == {(0, True)}


def test_files_have_annotations(tmp_path: Path) -> None:
    model = training()
    onnx.checker.check_model(model)
    assert marks(loaded(model))[:2] == [("Exp", 0, False), ("Exp", 10, True)]
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    sardonyx.InferenceSession(model.SerializeToString(), options)
    saved = onnx.load(options.optimized_model_filepath)
    onnx.checker.check_model(saved, full_check=True)
    assert saved.ir_version >= 10
    assert sorted(m for _, *m in marks(loaded(saved))) == sorted(
        m for _, *m in marks(loaded(model))
    )
    plain = model_of([node("Exp", "x", "a"), node("Neg", "a", "y")])
    sardonyx.InferenceSession(plain.SerializeToString(), options)
    saved = onnx.load(options.optimized_model_filepath)
    assert saved.ir_version < 10
    assert not any(n.metadata_props for n in saved.graph.node)


def test_inlined_functions_inherit_annotations() -> None:
    inner = [node("Exp", "p", "q"), node("Neg", "q", "r", priority="5")]
    opset = [helper.make_opsetid("", 21)]
    function = helper.make_function("own", "Twice", ["p"], ["r"], inner, opset)
    call = helper.make_node("Twice", ["x"], ["y"], domain="own")
    call.metadata_props.add(key="sardonyx.backward", value="1")
    model = model_of([call], functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert marks(loaded(model)) == [("Exp", 0, True), ("Neg", 5, True)]


def bad_marks() -> Iterator[tuple[str, str]]:
    for text in ("", "ten", "1.5", "2147483648", "-2147483648", "9" * 5000, "--1", "٣"):
        yield "priority", text
    for text in ("", "true", "2", "-2"):
        yield "backward", text


@pytest.mark.parametrize(("key", "text"), list(bad_marks()))
def test_malformed_annotations(key: str, text: str) -> None:
    with pytest.raises(InvalidGraph, match=f"the metadata sardonyx.{key} of a node must be"):
        loaded(model_of([node("Neg", "x", "y", **{key: text})]))


def test_packs_have_annotations(tmp_path: Path) -> None:
    path = embedded(tmp_path, training())
    from_model = marks(opened(path)._compiled.model.graph)
    packed(path)
    session = opened(path)
    assert uses_pack(session)
    assert marks(session._compiled.model.graph) == from_model
    assert ("MatMul", 0, True) in from_model
    x = np.ones((8, 8), np.float32)
    session.run(None, {"x": x})


@pytest.mark.parametrize(
    "wrong", [[[1, 1]], [[2**31, False]], [["1", False]], [[1]], [[0, False], 1]]
)
def test_annotations_of_a_forged_pack(
    wrong: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = embedded(tmp_path, training())
    packed(path)

    def change(document: Any) -> Any:
        document["graph"]["nodes"][0][5:] = wrong
        return document

    forged(f"{path}.pack", graph=change)
    session = opened(path)
    assert not uses_pack(session)
    assert "is not used" in caplog.text

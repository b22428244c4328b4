"""Graphs of 16-bit floats with unknown ranks run as those with known ranks do."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import SardonyxError
from sardonyx.ops import all_ops
from tests.random_graphs.graph import RandomGraph, make
from tests.random_graphs.onnxruntime_process import OrtError, OrtProcess

HALVES = {TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16}
SEEDS = 120
TYPES = ("to", "dtype", "output_dtype")  # attributes that name an element type


def halved(graph: RandomGraph, half: int) -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """The model with its float tensors in a half type, and what it is fed with."""
    model = graph.model(plain=True)
    _halve_graph(model.graph, half)
    return model, [{n: _halve_value(x, half) for n, x in r.feeds.items()} for r in graph.runs]


def _halve_graph(graph: GraphProto, half: int) -> None:
    for tensor in graph.initializer:
        _halve_tensor(tensor, half)
    for info in (*graph.input, *graph.output, *graph.value_info):
        _halve_type(info.type, half)
    _halve_nodes(graph.node, half)


def _halve_nodes(nodes: Iterable[NodeProto], half: int) -> None:
    for attribute in (a for n in nodes for a in n.attribute):
        if attribute.type == AttributeProto.TENSOR:
            _halve_tensor(attribute.t, half)
        elif attribute.type == AttributeProto.GRAPH:
            _halve_graph(attribute.g, half)
        elif attribute.name in TYPES and attribute.i == TensorProto.FLOAT:
            attribute.i = half


def _halve_tensor(tensor: TensorProto, half: int) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        numbers = numpy_helper.to_array(tensor).astype(HALVES[half])
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))


def _halve_type(kind: TypeProto, half: int) -> None:
    if kind.tensor_type.elem_type == TensorProto.FLOAT:
        kind.tensor_type.elem_type = half
    for outer in (f for f in ("sequence_type", "optional_type") if kind.HasField(f)):
        _halve_type(getattr(kind, outer).elem_type, half)


def _halve_value(value: Any, half: int) -> Any:
    if isinstance(value, list):
        return [_halve_value(v, half) for v in value]
    is_float = isinstance(value, np.ndarray) and value.dtype == np.float32
    return value.astype(HALVES[half]) if is_float else value


def refusal(model: onnx.ModelProto, feeds: list[dict[str, Any]]) -> str:
    """Describe the fault of a model or of its run; empty if there is none."""
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    try:
        session = sardonyx.InferenceSession(model.SerializeToString(), options)
        with np.errstate(all="ignore"):
            for feed in feeds:
                session.run(None, feed)
    except SardonyxError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("half", HALVES, ids=["float16", "bfloat16"])
@pytest.mark.filterwarnings("ignore")
def test_half_type_graphs_of_partly_unknown_ranks(half: int) -> None:
    ort, refused = OrtProcess(), []
    for seed in range(SEEDS):
        graph, rng = make(seed), Random(seed)
        model, feeds = halved(graph, half)
        if graph.refusal or not graph.outputs or refusal(model, feeds):
            continue  # an op that has no such type
        for info in model.graph.input:
            if info.type.HasField("tensor_type") and rng.random() < 0.5:
                info.type.tensor_type.ClearField("shape")
        text = refusal(model, feeds)
        if text:
            refused.append((seed, text, _heard(ort, model, feeds)))
    ort.stop()
    assert not [r for r in refused if not r[2]]


def _heard(ort: OrtProcess, model: onnx.ModelProto, feeds: list[dict[str, Any]]) -> str:
    """Return the reason why onnxruntime refuses a model."""
    try:
        ort.run(model.SerializeToString(), feeds)
    except OrtError as error:
        return str(error)
    return ""


def test_ops_with_bodies_infer_them_without_ranks() -> None:
    assert all(op.takes_unranked for op in all_ops() if op.has_bodies)


def modified(shape: list[int] | None) -> sardonyx.InferenceSession:
    """FlexAttention with doubled scores."""
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    scores, out = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "so")
    body = helper.make_graph(
        [helper.make_node("Mul", ["s", "two"], ["o"])], "b", [scores], [out], [two]
    )
    node = helper.make_node(
        "FlexAttention", [*"qkv"], ["y"], domain="ai.onnx.preview", score_mod=body
    )
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "qkv"]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("ai.onnx.preview", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    return sardonyx.InferenceSession(model.SerializeToString())


def test_flex_attention_of_unknown_ranks() -> None:
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((1, 2, 4, 4), np.float32) for n in "qkv"}
    expected = modified([1, 2, 4, 4]).run(None, feeds)[0]
    session = modified(None)
    assert np.array_equal(session.run(None, feeds)[0], expected)
    for wrong in (feeds["k"][0], feeds["k"][..., :3], feeds["k"][:, :0]):
        with pytest.raises(sardonyx.errors.InvalidArgument, match=r"K|V"):
            session.run(None, {**feeds, "k": wrong})

"""Nodes with wrong attributes, shapes and values: an error of the user's, never one of ours.

`WRONG_NODES=20 pytest tests/test_wrong_nodes.py` makes twenty changes to every case.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import onnx.defs
import pytest
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

import sardonyx
from sardonyx.errors import InternalError, InvalidArgument, SardonyxError, ShapeError
from sardonyx.ops import lookup
from tests.hostile_runs import bounded_memory, within
from tests.op_cases import Array, Case
from tests.oracle import feeds_of, model_of
from tests.test_ops import CASES, GOOD
from tests.test_schemas import KINDS

COUNT = int(os.environ.get("WRONG_NODES", "0"))
AT_ONCE = 100
INTS = (0, 1, -1, 2, 3, 7, -2, 64, 255, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e30, -1e-30)
TEXTS = (b"", b"nonsense", b"\xff", b"linear", b"constant", b"SAME_UPPER")
TYPES = {"int": 2, "float": 1, "bytes": 3, "ints": 7, "floats": 6, "strings": 8}

pytestmark = pytest.mark.filterwarnings("ignore")


def kinds_of(case: Case) -> dict[str, str]:
    """The attributes that a case's op has in its opset, by name."""
    try:
        schema = onnx.defs.get_schema(case.op, case.opset or 99, case.domain)
    except onnx.defs.SchemaError:
        op = lookup(case.domain, case.op)
        return {} if op is None else dict(op.attr_kinds)
    return {name: KINDS[a.type.name] for name, a in schema.attributes.items()}


def wrong_attribute(rng: Random, node: NodeProto, kinds: dict[str, str]) -> None:
    """Gives an attribute another value, or another type, or adds it."""
    names = [name for name, kind in kinds.items() if kind in TYPES]
    if not names:
        return
    name = rng.choice(names)
    old = next((a for a in node.attribute if a.name == name), None)
    kind = rng.choice(list(TYPES)) if rng.random() < 0.1 else kinds[name]
    made = AttributeProto(name=name, type=TYPES[kind])
    count = rng.choice((0, 1, 2, 3, 5, 8))
    if kind == "int":
        made.i = rng.choice(INTS)
    elif kind == "float":
        made.f = rng.choice(FLOATS)
    elif kind == "bytes":
        made.s = rng.choice(TEXTS)
    elif kind == "floats":
        made.floats.extend(rng.choices(FLOATS, k=count))
    elif kind == "strings":
        made.strings.extend(rng.choices(TEXTS, k=count))
    elif old is not None and old.ints and rng.random() < 0.6:
        made.ints.extend(old.ints)
        made.ints[rng.randrange(len(made.ints))] = rng.choice(INTS)
    else:
        made.ints.extend(rng.choices(INTS, k=count))
    if old is not None:
        node.attribute.remove(old)
    node.attribute.append(made)


def wrong_shape(rng: Random, x: Any) -> Any:
    """The same numbers, more or fewer of them, in another shape."""
    if not isinstance(x, np.ndarray):
        return x
    shape = list(x.shape)
    place, size = rng.randrange(len(shape) + 1), rng.choice((0, 1, 2, 3, 5))
    change = rng.randrange(4)
    if change == 0:
        shape.insert(place, size)
    elif change == 1:
        shape = []
    else:
        shape[place : place + 1] = [size] if change == 2 else []
    if not x.size:
        return np.full(shape, "a" if x.dtype == object else 0, x.dtype)
    return np.resize(x, shape).astype(x.dtype)


def wrong_number(rng: Random, x: Any) -> Any:
    """An integer tensor with one number beyond reason."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "iu" or not x.size:
        return x
    info, changed = np.iinfo(x.dtype), x.copy()
    changed.reshape(-1)[rng.randrange(x.size)] = min(max(rng.choice(INTS), info.min), info.max)
    return changed


def wrong_model(rng: Random, case: Case) -> tuple[ModelProto, dict[str, Any]]:
    """The case as a model with something changed, and what it is fed with."""
    inputs, what = list(case.inputs), rng.random()
    if inputs and what > 0.5:
        place = rng.randrange(len(inputs))
        inputs[place] = (wrong_shape if what < 0.85 else wrong_number)(rng, inputs[place])
    changed = replace(case, inputs=tuple(inputs))
    feeds = feeds_of(changed)
    constants = [n for n, x in feeds.items() if isinstance(x, np.ndarray) and rng.random() < 0.4]
    model = model_of(changed, constants=constants, symbolic=rng.random() < 0.4)
    if what <= 0.5 or rng.random() < 0.2:
        wrong_attribute(rng, model.graph.node[0], kinds_of(case))
    return model, {n: x for n, x in feeds.items() if n not in constants}


def complaint(model: ModelProto, feeds: dict[str, Any]) -> str:
    """Describe how the refusal of a model is wrong; empty if it runs or is refused properly."""
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    try:
        with within(10), np.errstate(all="ignore"):
            session = sardonyx.InferenceSession(model.SerializeToString(), options)
            session.run(None, feeds, sardonyx.RunOptions())
    except InternalError as error:
        return str(error)
    except SardonyxError:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("first", range(0, len(GOOD), AT_ONCE))
def test_wrong_nodes(first: int) -> None:
    """One change to every third case, or as many as are asked for to every one."""
    found = []
    with bounded_memory(3 << 30):
        for index in GOOD[first : first + AT_ONCE][:: 1 if COUNT else 3]:
            for number in range(COUNT or 1):
                model, feeds = wrong_model(Random(1000 * index + number), CASES[index])
                if text := complaint(model, feeds):
                    found.append((index, number, str(CASES[index]), text))
    assert not found


F = TensorProto.FLOAT
X = helper.make_tensor_value_info("x", F, ["A", "B"])
FED = {"x": np.zeros((3, 2), np.float32)}


def session_of(nodes: list[NodeProto], inputs: list[Any], **constants: Array) -> Any:
    """A session over nodes that make y."""
    tensors = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [ValueInfoProto(name="y")], tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return sardonyx.InferenceSession(model.SerializeToString())


def of_sizes(*steps: tuple[str, str, str, str]) -> list[NodeProto]:
    """Nodes that compute with the sizes s of x, and fill a tensor of the shape that comes last."""
    nodes = [helper.make_node(op, [a, b], [c]) for op, a, b, c in steps]
    fill = helper.make_node("Expand", ["zero", steps[-1][3]], ["y"])
    return [helper.make_node("Shape", ["x"], ["s"]), *nodes, fill]


def test_sizes_beyond_64_bits() -> None:
    constants = {"zero": np.float32([0]), "big": np.int64([2**40, 2**40])}
    session = session_of(of_sizes(("Mul", "s", "big", "t")), [X], **constants)
    with pytest.raises(InvalidArgument, match=r"cannot have the shape \[3298534883328"):
        session.run(None, FED)
    twice = of_sizes(("Mul", "s", "big", "t"), ("Mul", "t", "big", "u"))
    with pytest.raises(ShapeError, match="does not fit 64 bits") as caught:
        session_of(twice, [X], **constants)
    assert caught.value.where["node"]


def test_sizes_beyond_64_bits_on_the_way_to_others() -> None:
    squares = [("Mul", n, n, f"{n}s") for n in ("s", "ss", "sss", "ssss", "sssss", "ssssss")]
    nodes = of_sizes(*squares, ("Min", "s" * 7, "s", "m"))
    session = session_of(nodes, [X], zero=np.float32([0]))
    assert session.run(None, {"x": FED["x"][:1, :1]})[0].shape == (1, 1)
    for options in ((), (sardonyx.RunOptions(),)):
        with pytest.raises(InvalidArgument, match="does not fit 64 bits") as caught:
            session.run(None, FED, *options)
        assert caught.value.where["sizes"] == "A=3, B=2"


def test_failing_inference_rules_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    op = lookup("", "Relu")
    assert op is not None

    def broken(*_: Any, **__: Any) -> Any:
        raise TypeError("a slip")

    node = helper.make_node("Relu", ["x"], ["y"], name="first")
    monkeypatch.setattr(op, "infer_rule", broken)
    with pytest.raises(InternalError, match="TypeError while inferring Relu: a slip") as caught:
        session_of([node], [X])
    assert "first" in caught.value.where["node"]
    assert "please report" in str(caught.value)


def test_failing_stages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("a slip")

    monkeypatch.setattr("sardonyx.compile.schedule", broken)
    with pytest.raises(InternalError, match="KeyError while ordering the nodes"):
        session_of([helper.make_node("Relu", ["x"], ["y"])], [X])


MEMORY: dict[str, Callable[[], BaseException]] = {
    "malloc": MemoryError,
    "mmap": lambda: OSError(12, "Cannot allocate memory"),
}


@pytest.mark.parametrize("how", MEMORY)
@pytest.mark.parametrize("where", ["compile.schedule", "weights.layouts.LayoutCache.address"])
def test_out_of_memory(how: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise MEMORY[how]()

    monkeypatch.setattr(f"sardonyx.{where}", full)
    weights = np.ones((2, 2), np.float32)
    with pytest.raises(sardonyx.errors.RuntimeException, match="out of memory while"):
        session_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [X], w=weights)


def test_out_of_memory_while_mapping(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    (tmp_path / "model.onnx").write_bytes(b"some")
    monkeypatch.setattr("mmap.mmap", full)
    with pytest.raises(sardonyx.errors.RuntimeException, match="out of memory while mapping"):
        sardonyx.InferenceSession(tmp_path / "model.onnx")


def mapped(key: int, value: int) -> sardonyx.InferenceSession:
    """A model that takes a map."""
    kind = onnx.TypeProto()
    kind.map_type.key_type = key
    kind.map_type.value_type.tensor_type.elem_type = value
    words = {"string_vocabulary": ["a", "b"]} if key == TensorProto.STRING else {}
    words = words or {"int64_vocabulary": [1, 2]}
    node = helper.make_node("DictVectorizer", ["m"], ["y"], domain="ai.onnx.ml", **words)
    made: sardonyx.InferenceSession = session_of([node], [helper.make_value_info("m", kind)])
    return made


def test_maps_of_wrong_keys_and_values() -> None:
    texts, ints = mapped(TensorProto.STRING, F), mapped(TensorProto.INT64, TensorProto.INT64)
    assert texts.run(None, {"m": {"a": 1, "b": np.float32(2)}})[0].tolist() == [[1, 2]]
    assert ints.run(None, {"m": {1: np.int64(3), np.int64(2): 4}})[0].tolist() == [[3, 4]]
    for key in (1, None, b"a", ("a",)):
        with pytest.raises(InvalidArgument, match="has the key"):
            texts.run(None, {"m": {key: 1.0}})
    for key in ("a", 1.5, None):
        with pytest.raises(InvalidArgument, match="has the key"):
            ints.run(None, {"m": {key: 1}})
    for value in ("x", None, [1.0], object(), np.array(["x"]), np.zeros(2, np.float32)):
        with pytest.raises(InvalidArgument, match="has the value"):
            texts.run(None, {"m": {"a": value}})
    for value in (2.5, float("nan"), 2**70, "1"):
        with pytest.raises(InvalidArgument, match="has the value"):
            ints.run(None, {"m": {1: value}})

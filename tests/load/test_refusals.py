"""Bad models: each is refused by onnxruntime's class of error, saying what, where, what to do."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx import errors
from tests.native.wire import field

F = TensorProto.FLOAT


def model(nodes: list[onnx.NodeProto], **changes: object) -> onnx.ModelProto:
    """A model with x in and y out, made of these nodes."""
    graph = helper.make_graph(
        nodes,
        "g",
        changes.get("inputs", [helper.make_tensor_value_info("x", F, ["N", 2])]),
        changes.get("outputs", [helper.make_tensor_value_info("y", F, None)]),
        changes.get("initializers", []),
    )
    opsets = {"": changes.get("opset", 20), **{n.domain: 1 for n in nodes if n.domain}}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    made = helper.make_model(graph, opset_imports=imports)
    made.ir_version = changes.get("ir", 9)
    made.functions.extend(changes.get("functions", []))
    return made


def node(op: str, inputs: str, outputs: str, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"the_{op.lower()}", **attrs)


def tensor(name: str, dims: list[int], data: bytes | None = b"", kind: int = F) -> TensorProto:
    made = TensorProto(name=name, data_type=kind, dims=dims)
    if data is not None:
        made.raw_data = data
    return made


def with_tensor(t: TensorProto) -> onnx.ModelProto:
    return model([node("Add", "x w", "y")], initializers=[t])


def function(name: str, calls: list[str]) -> onnx.FunctionProto:
    nodes = [helper.make_node(c, ["a"], [f"b{i}"], domain="own") for i, c in enumerate(calls)]
    nodes.append(helper.make_node("Sum", [f"b{i}" for i in range(len(calls))], ["b"]))
    return helper.make_function(
        "own",
        name,
        ["a"],
        ["b"],
        nodes,
        [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)],
    )


def calls(functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
    made = model([helper.make_node("f0", ["x"], ["y"], domain="own")], functions=functions)
    made.opset_import.append(helper.make_opsetid("own", 1))
    return made


BAD: dict[str, tuple[Callable[[], onnx.ModelProto], type[Exception], str]] = {
    "nothing, and too much of it": (
        lambda: with_tensor(tensor("w", [0, 2**40, 2**40])),
        errors.InvalidGraph,
        r"too many elements[\s\S]*w",
    ),
    "an op that only passes make": (
        lambda: model([node("Append", "x x", "y", domain="sardonyx")]),
        errors.NotImplemented,
        "Append",
    ),
    "one text where an old op has a list": (
        lambda: model([node("LabelEncoder", "x", "y", domain="ai.onnx.ml", classes_strings="ab")]),
        errors.InvalidGraph,
        "is of type strings",
    ),
    "undefined name": (
        lambda: model([node("Relu", "nowhere", "y")]),
        errors.InvalidGraph,
        r"nothing makes the value 'nowhere'[\s\S]*the_relu",
    ),
    "undefined output": (
        lambda: model([node("Relu", "x", "z")]),
        errors.InvalidGraph,
        "output 'y'",
    ),
    "name given twice": (
        lambda: model([node("Relu", "x", "y"), node("Neg", "x", "y")]),
        errors.InvalidGraph,
        r"'y' is given twice[\s\S]*the_neg",
    ),
    "cycle": (
        lambda: model([node("Add", "x b", "a"), node("Relu", "a", "b"), node("Neg", "b", "y")]),
        errors.InvalidGraph,
        "cycle",
    ),
    "unknown op": (
        lambda: model([node("Frobnicate", "x", "y")]),
        errors.UnknownOp,
        r"Frobnicate of opset 20 is not implemented[\s\S]*the_frobnicate",
    ),
    "made for one CPU": (
        lambda: model([node("ReorderInput", "x", "y", domain="com.microsoft.nchwc")]),
        errors.NotImplemented,
        r"for the CPU that the model was saved on[\s\S]*ORT_ENABLE_EXTENDED",
    ),
    "made for one device": (
        lambda: model([node("EPContext", "x", "y", domain="com.microsoft")]),
        errors.NotImplemented,
        r"compiled for one device[\s\S]*the original model",
    ),
    "unknown attribute": (
        lambda: model([node("Softmax", "x", "y", axes=1)]),
        errors.InvalidGraph,
        "no attribute axes; it has axis",
    ),
    "attribute of a wrong type": (
        lambda: model([node("Softmax", "x", "y", axis="1")]),
        errors.InvalidGraph,
        "attribute axis of Softmax is of type int, and the node gives bytes",
    ),
    "missing attribute": (
        lambda: model([node("Concat", "x x", "y")]),
        errors.InvalidGraph,
        "needs the attribute axis",
    ),
    "too many inputs": (
        lambda: model([node("Relu", "x x", "y")]),
        errors.InvalidGraph,
        "takes 1 inputs, not 2",
    ),
    "too few inputs": (
        lambda: model([node("Add", "x", "y")]),
        errors.InvalidGraph,
        "takes 2 inputs, not 1",
    ),
    "too many outputs": (
        lambda: model([node("Relu", "x", "y z")]),
        errors.InvalidGraph,
        "1 outputs, and the node names 2",
    ),
    "axis out of range": (
        lambda: model([node("Softmax", "x", "y", axis=5)]),
        errors.InvalidGraph,
        r"axis 5 is outside \[-2, 2\)[\s\S]*the_softmax",
    ),
    "wrong dtype": (
        lambda: model([node("Not", "x", "y")]),
        errors.InvalidGraph,
        "input x of Not is f32; supported types: bool",
    ),
    "shapes that do not fit": (
        lambda: with_tensor(tensor("w", [3], bytes(12))),
        errors.InvalidGraph,
        r"do not broadcast: 2 and 3[\s\S]*the_add",
    ),
    "negative dim": (
        lambda: with_tensor(tensor("w", [-1])),
        errors.InvalidGraph,
        r"negative dim[\s\S]*tensor *w",
    ),
    "dims that overflow": (
        lambda: with_tensor(tensor("w", [2**40, 2**40])),
        errors.InvalidGraph,
        "too many elements",
    ),
    "data that is too short": (
        lambda: with_tensor(tensor("w", [2], bytes(4))),
        errors.InvalidGraph,
        r"holds 4 bytes, and f32\[2\] needs 8",
    ),
    "no data": (lambda: with_tensor(tensor("w", [2], None)), errors.InvalidGraph, "has no data"),
    "unknown element type": (
        lambda: with_tensor(tensor("w", [1], bytes(4), 99)),
        errors.InvalidGraph,
        "99 is not an element type",
    ),
    "old IR": (lambda: model([node("Relu", "x", "y")], ir=2), errors.InvalidGraph, "IR version 2"),
    "opset of the future": (
        lambda: model([node("Relu", "x", "y")], opset=1000),
        errors.NotImplemented,
        "opset 1000 of ai.onnx, and 28 is the newest",
    ),
    "input without a type": (
        lambda: model([node("Relu", "x", "y")], inputs=[onnx.ValueInfoProto(name="x")]),
        errors.InvalidGraph,
        "'x' has no type",
    ),
    "function that calls itself": (
        lambda: calls([function("f0", ["f0"])]),
        errors.InvalidGraph,
        "without end",
    ),
    "functions that explode": (
        lambda: calls(
            [function(f"f{i}", [f"f{i + 1}"] * 10) for i in range(12)] + [function("f12", [])]
        ),
        errors.SardonyxError,
        "without end|takes",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models_are_refused(name: str) -> None:
    make, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        sardonyx.InferenceSession(make().SerializeToString())


GOOD = model([node("Relu", "x", "y")]).SerializeToString()


@pytest.mark.parametrize("data", [b"", b"abc", b"\x00" * 64, GOOD[:-3], GOOD[: len(GOOD) // 2]])
def test_bytes_that_are_not_a_model(data: bytes) -> None:
    with pytest.raises((errors.InvalidProtobuf, errors.InvalidGraph)):
        sardonyx.InferenceSession(data)


OTHERS = {
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "an archive": (b"PK\x03\x04" + b"\0" * 64, "zip archive"),
    "arrays": (b"PK\x03\x04" + b"\0" * 26 + b"x.npy", ".npz file"),
    "a checkpoint": (b"PK\x03\x04" + b"\0" * 26 + b"net/data.pkl", "PyTorch checkpoint"),
    "a page": (b"\n<!DOCTYPE html>\n<html>", "an HTML page"),
    "a document": (b'<?xml version="1.0"?>', "an XML file"),
    "an object": (b'{"error": "not found"}', "a JSON file"),
    "a list": (b"[\n {}]", "a JSON file"),
    "a compressed file": (b"\x1f\x8b\x08" + bytes(20), "a compressed file"),
    "weights": (b'\x10\0\0\0\0\0\0\0{"__metadata__":{}}', "a safetensors file"),
    "another format": (b"GGUF\3\0\0\0", "a GGUF model"),
    "a library": (b"\x7fELF\2\1\1" + bytes(60), "a program or library"),
    "zeros": (bytes(600), "zeros instead of a model"),
    "half a model": (
        GOOD[: len(GOOD) // 2],
        f"cut short: {len(GOOD) // 2:,} of [1-9][0-9,]* bytes",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_kinds_are_named(name: str) -> None:
    data, text = OTHERS[name]
    with pytest.raises(errors.InvalidProtobuf, match=text):
        sardonyx.InferenceSession(data)


def test_a_misspelt_op() -> None:
    with pytest.raises(errors.NotImplemented, match="is Relu meant"):
        sardonyx.InferenceSession(model([node("Rellu", "x", "y")]).SerializeToString())


def test_deeply_nested_bodies() -> None:
    graph = field(2, b"inner")
    for _ in range(5000):
        graph = field(1, field(5, field(1, b"body") + field(6, graph)))
    with pytest.raises(errors.InvalidProtobuf, match=r"nest|deep"):
        sardonyx.InferenceSession(b"\x08\x08" + field(7, graph))


def test_missing_and_irregular_files(tmp_path: Path) -> None:
    with pytest.raises(errors.NoSuchFile, match="there is no file"):
        sardonyx.InferenceSession(tmp_path / "missing.onnx")
    with pytest.raises(errors.InvalidArgument, match="folder"):
        sardonyx.InferenceSession(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.InvalidArgument, match="not a regular file"):
        sardonyx.InferenceSession(str(tmp_path / "pipe"))
    with pytest.raises(errors.InvalidArgument, match="got int"):
        sardonyx.InferenceSession(7)


def external(folder: Path, entries: dict[str, str]) -> Path:
    t = TensorProto(name="w", data_type=F, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        t.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(with_tensor(t).SerializeToString())
    return path


@pytest.mark.parametrize(
    ("entries", "kind", "text"),
    [
        ({"location": "gone.bin"}, errors.NoSuchFile, "gone.bin"),
        ({"location": "../outside.bin"}, errors.InvalidGraph, "leads out of the model's folder"),
        ({"location": "/etc/passwd"}, errors.InvalidGraph, "not a relative path"),
        ({"location": "link.bin"}, errors.InvalidGraph, "leads out of the model's folder"),
        ({"location": "pipe"}, errors.InvalidArgument, "not a regular file"),
        (
            {"location": "w.bin", "offset": "8"},
            errors.InvalidGraph,
            "has 12 bytes, and the tensor is at bytes 8 to 16",
        ),
        ({"location": "w.bin", "length": "9"}, errors.InvalidGraph, "says 9 bytes"),
        ({"location": "w.bin", "offset": "-4"}, errors.InvalidGraph, "not a byte count"),
        ({"location": "w.bin", "offset": "9" * 30}, errors.InvalidGraph, "not a byte count"),
        ({"offset": "0"}, errors.InvalidGraph, "no location"),
        ({"location": ""}, errors.InvalidGraph, "not a relative path"),
    ],
)
def test_hostile_external_data(
    tmp_path: Path, entries: dict[str, str], kind: type[Exception], text: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(12))
    (folder / "w.bin").write_bytes(bytes(12))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    os.mkfifo(folder / "pipe")
    with pytest.raises(kind, match=text) as caught:
        sardonyx.InferenceSession(external(folder, entries))
    assert "w" in str(caught.value)


def test_external_data_in_memory_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.ones(3, np.float32).tobytes())
    path = external(tmp_path, {"location": "w.bin"})
    with pytest.raises(errors.InvalidGraph, match="given in memory"):
        sardonyx.InferenceSession(io.BytesIO(path.read_bytes()))
    options = sardonyx.SessionOptions()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(tmp_path)
    )
    session = sardonyx.InferenceSession(path.read_bytes(), options)
    assert session.run(None, {"x": np.zeros((1, 2), np.float32)})[0].tolist() == [[1, 1]]


def test_a_symlinked_cache_is_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    path = external(blobs, {"location": "w.bin"})
    (blobs / "data").write_bytes(bytes(12))
    (snapshot / "model.onnx").symlink_to(path)
    (snapshot / "w.bin").symlink_to(blobs / "data")
    session = sardonyx.InferenceSession(snapshot / "model.onnx")
    assert session.run(None, {"x": np.ones((1, 2), np.float32)})[0].tolist() == [[1, 1]]


def test_an_unknown_op_raises_onnxruntimes_class() -> None:
    """There it is Fail, which such programs handle, and NotImplemented if it has no kernel."""
    assert issubclass(errors.UnknownOp, errors.Fail)
    assert issubclass(errors.UnknownOp, errors.NotImplemented)

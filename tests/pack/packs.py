"""Models for tests of packs, and helpers that pack and open them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compile import Options
from sardonyx.compile.pack_model import Request, Written, pack
from sardonyx.pack.file import _HEAD, _SECTION, HEADER_BYTES, checksum
from sardonyx.providers import resolve

FLOAT = TensorProto.FLOAT
Change = Callable[[Any], Any]


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(
    nodes: list[Any], weights: dict[str, Any], inputs: dict[str, Any], outputs: list[str]
) -> onnx.ModelProto:
    """A model of these nodes; inputs are dims by name, of floats unless a type comes with them."""
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(n, d[0], d[1])
            if isinstance(d, tuple)
            else helper.make_tensor_value_info(n, FLOAT, d)
            for n, d in inputs.items()
        ],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    made.metadata_props.add(key="who", value="tests")
    return made


def layers() -> onnx.ModelProto:
    """A table, a product that packs its weight, one with a folded weight, small constants."""
    return model(
        [
            helper.make_node("Gather", ["table", "ids"], ["e"]),
            helper.make_node("MatMul", ["e", "w"], ["a"], name="first"),
            helper.make_node("Add", ["a", "bias"], ["b"]),
            helper.make_node("Relu", ["b"], ["c"]),
            helper.make_node("Transpose", ["v"], ["vt"], perm=[1, 0]),
            helper.make_node("Mul", ["vt", "scale"], ["vs"]),
            helper.make_node("MatMul", ["c", "vs"], ["y"], name="second"),
        ],
        {
            "odd": np.zeros(3, np.int8),  # what follows is not aligned
            "table": random(300, 128),
            "w": random(128, 256, seed=1),
            "bias": random(256, seed=2),
            "v": random(80, 256, seed=3),
            "scale": np.float32(0.5),
        },
        {"ids": (TensorProto.INT64, ["batch", "n"])},
        ["y"],
    )


LAYERS = {"ids": np.arange(12).reshape(2, 6)}


def external(tmp: Path, made: onnx.ModelProto | None = None) -> str:
    """The same model, its weights in a file of their own."""
    path = tmp / "model.onnx"
    onnx.save(
        made or layers(), path, save_as_external_data=True, location="model.data",
        size_threshold=0,
    )  # fmt: skip
    return str(path)


def embedded(tmp: Path, made: onnx.ModelProto | None = None) -> str:
    path = tmp / "model.onnx"
    onnx.save(made or layers(), path)
    return str(path)


def packed(path: str, target: str | None = None, **options: Any) -> Written:
    """Writes the pack of a model, beside it unless told otherwise."""
    request = Request(target or f"{path}.pack")
    return pack(path, Options(resolve(None, None)[1], **options), request)


def opened(path: Any, **entries: str) -> sardonyx.InferenceSession:
    """A session, with config entries of our own."""
    options = sardonyx.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(f"sardonyx.{key}", value)
    return sardonyx.InferenceSession(path, options)


def stages(session: sardonyx.InferenceSession) -> set[str]:
    return set(session._compiled.stages.seconds())


def uses_pack(session: sardonyx.InferenceSession) -> bool:
    """Whether a session came out of a pack: nothing was optimized then."""
    return "pack" in stages(session) and "lower" not in stages(session)


def leftovers(folder: Any) -> list[str]:
    """Temporary files in a folder."""
    return [n for n in os.listdir(folder) if n.endswith(".tmp")]


def sections(data: bytes) -> list[tuple[int, Any]]:
    """Return the offsets and the contents of the index and the graph."""
    found = []
    for i in range(2):
        start, length, _ = _SECTION.unpack_from(data, _HEAD.size + i * _SECTION.size)
        found.append((start, json.loads(data[start : start + length])))
    return found


def forged(path: str, index: Change | None = None, graph: Change | None = None) -> None:
    """Changes what a pack says, checksums included, as somebody would who means ill."""
    data = Path(path).read_bytes()
    (start, said), (_, drawn) = sections(data)
    texts = []
    for document, change in ((said, index), (drawn, graph)):
        made = document if change is None else change(document)
        texts.append(made if isinstance(made, bytes) else json.dumps(made).encode())
    table, body, at = b"", b"", start
    for text in texts:
        table += _SECTION.pack(at, len(text), checksum(text))
        padding = bytes(-len(text) % 64)
        body += text + padding
        at += len(text) + len(padding)
    magic, version, count, _ = _HEAD.unpack_from(data)
    header = _HEAD.pack(magic, version, count, start + len(body)) + table
    head = (header + checksum(header)).ljust(HEADER_BYTES, b"\0")
    Path(path).write_bytes(head + data[HEADER_BYTES:start] + body)


def setting(*keys: Any, to: Any) -> Change:
    """Sets one place in a document."""

    def change(document: Any) -> Any:
        place = document
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to
        return document

    return change


def rejected(path: str, caplog: pytest.LogCaptureFixture, why: str, **entries: str) -> None:
    """The session works without the pack, and a warning says why."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sardonyx"):
        session = opened(path, **entries)
    assert not uses_pack(session) or "write_pack" in stages(session)
    assert why in caplog.text
    assert "is not used" in caplog.text
    session.run(None, LAYERS)

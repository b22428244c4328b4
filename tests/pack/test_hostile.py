"""Maliciously crafted packs are rejected with a reason, whatever they contain."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sardonyx.pack.file import HEADER_BYTES
from tests.pack.packs import LAYERS, Change, embedded, forged, opened, packed, rejected, setting


def deep(document: Any) -> bytes:
    return b"[" * 100_000


def overlapping(document: Any) -> Any:
    document["blobs"][1][0] = document["blobs"][0][0]
    return document


def entry_of(kind: str, position: int, to: Any) -> Change:
    """Changes the first entry of its kind in the table of constants."""

    def change(document: Any) -> Any:
        entry = next(e for e in document["constants"] if e[0] == kind)
        entry[position] = to
        return document

    return change


HOSTILE_INDEX: dict[str, tuple[Change, str]] = {
    "no table": (lambda d: [], "not an object"),
    "no json": (lambda d: b"{", "not readable"),
    "nan": (lambda d: json.dumps({**d, "samples": [float("nan")]}).encode(), "not a number"),
    "deep": (deep, "not readable"),
    "missing": (lambda d: {k: v for k, v in d.items() if k != "files"}, "lacks"),
    "huge blob": (setting("blobs", 0, 1, to=1 << 61), "not a number"),
    "huge digits": (lambda d: b'{"blobs": ' + b"9" * 100_000 + b"}", "not readable"),
    "blob after the end": (setting("blobs", 0, 0, to=1 << 40), "not a number"),
    "negative": (setting("blobs", 0, 0, to=-64), "not a number"),
    "unaligned": (setting("blobs", 0, 0, to=HEADER_BYTES + 1), "begins at"),
    "overlapping": (overlapping, "overlaps"),
    "blob in header": (setting("blobs", 0, 0, to=0), "not a number"),
    "text for a number": (setting("blobs", 0, 1, to="9"), "not a number"),
    "truth for a number": (setting("blobs", 0, 1, to=True), "not a number"),
    "float for a number": (setting("blobs", 0, 1, to=64.0), "not a number"),
    "a million blobs": (setting("blobs", to=[[HEADER_BYTES, 64]] * 1_000_000), "overlaps"),
    "file outside": (setting("files", 0, 0, to="../../etc/passwd"), "leads out"),
    "absolute file": (setting("files", 0, 0, to="/etc/passwd"), "relative path"),
    "file size": (setting("files", 0, 1, to=5), "bytes, and had 5"),
    "sample after the end": (setting("samples", to=[[0, 1 << 40, 10, "x"]]), "not a number"),
    "sample of no file": (setting("samples", to=[[7, 0, 10, "x"]]), "not a number"),
    "range after the end": (entry_of("file", 4, 1 << 40), "not a number"),
    "range of no file": (entry_of("file", 3, 9), "not a number"),
    "ref of a length": (entry_of("file", 5, 4), "a constant of"),
    "blob of a shape": (entry_of("blob", 2, [1 << 30, 1 << 30]), "a constant of"),
    "shape too large": (entry_of("blob", 2, [1 << 59] * 9), "a shape"),
    "negative shape": (entry_of("blob", 2, [-1]), "not a number"),
    "no such blob": (entry_of("blob", 3, 9999), "not a number"),
    "no such type": (entry_of("blob", 1, "f99"), "not an element type"),
    "strings": (entry_of("blob", 1, "str"), "strings as bytes"),
    "no kind": (entry_of("blob", 0, "pickle"), "not a constant"),
    "recipe of itself": (entry_of("recipe", 5, [9999, 9999]), "not a number"),
    "recipe of another shape": (entry_of("recipe", 2, [1 << 31, 80]), "made by"),
    "recipe of another type": (entry_of("recipe", 1, "f64"), "made by"),
    "recipe of no op": (entry_of("recipe", 4, "Format"), "a constant made by"),
    "recipe of a loop": (entry_of("recipe", 4, "Loop"), "a constant made by"),
    "form of no constant": (setting("forms", 0, 0, to=99999), "not a number"),
    "form of no blob": (setting("forms", 0, 4, to=99999), "not a number"),
}


@pytest.mark.parametrize("name", HOSTILE_INDEX)
def test_hostile_index(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    packed(path)
    change, why = HOSTILE_INDEX[name]
    forged(f"{path}.pack", index=change)
    os.utime(path)  # else no sample is looked at
    rejected(path, caplog, why)


def test_a_blob_of_another_size_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels have no checks: what lowering wants decides, not what a pack has."""
    path = embedded(tmp_path)
    want = opened(path).run(None, LAYERS)
    packed(path)

    def shorter(document: Any) -> Any:
        document["blobs"][document["forms"][0][4]][1] -= 64
        return document

    forged(f"{path}.pack", index=shorter)
    got = opened(path).run(None, LAYERS)
    assert "it is packed again" in caplog.text
    assert got[0].tobytes() == want[0].tobytes()


def node_of(name: str, position: int, to: Any) -> Change:
    def change(document: Any) -> Any:
        nodes = document["graph"]["nodes"]
        number = next(i for i, (_, n) in enumerate(document["ops"]) if n == name)
        next(n for n in reversed(nodes) if n[0] == number)[position] = to
        return document

    return change


INSTRUCTION = ["instruction", "", "Add", [0, 7], "f32", ["tuple"]]
HOSTILE_GRAPH: dict[str, tuple[Change, str]] = {
    "no table": (lambda d: [], "not an object"),
    "empty": (lambda d: {}, "KeyError"),
    "no op": (setting("ops", 0, to=["", "Nothing"]), "there is no op"),
    "op beyond": (setting("graph", "nodes", 0, 0, to=99), "not a number"),
    "value beyond": (setting("graph", "nodes", 0, 2, to=[999]), "not a number"),
    "its own output": (setting("graph", "nodes", 0, 2, to=[1, 1]), "not a number"),
    "constant beyond": (setting("graph", "nodes", 0, 2, to=[-999]), "not a number"),
    "no outputs": (setting("graph", "nodes", 0, 3, to=[]), "has 0 outputs"),
    "too few outputs": (setting("ops", 0, to=["", "TopK"]), "TopK has 1 outputs"),
    "too many outputs": (setting("graph", "nodes", 0, 3, to=["a"] * 9), "has 9 outputs"),
    "unknown attribute": (setting("graph", "nodes", 0, 4, to={"x": 1}), "has no attribute"),
    "wrong attribute": (setting("graph", "nodes", 0, 4, to={"axis": ["bytes", "a"]}), "attribute"),
    "far axis": (setting("graph", "nodes", 0, 4, to={"axis": 77}), "the graph: "),
    "formula for an input": (
        setting("graph", "inputs", 0, 1, 2, to=[[[2, "batch"]], "n"]), "has the size",
    ),
    "name of a new dim": (setting("graph", "inputs", 0, 1, 2, to=["cut#0", "n"]), "the size"),
    "input without a type": (setting("graph", "inputs", 0, 1, to=None), "has no type"),
    "other outputs": (setting("outputs", to=[]), "differ in number"),
    "shapes of no outputs": (setting("graph", "declared", to=[None] * 99), "not a list of"),
    "a negative shape": (setting("graph", "declared", to=[[-1]]), "to have -1"),
    "other inputs": (setting("inputs", 0, 0, to="z"), "differ in names"),
    "code reads beyond": (
        node_of("MatMul", 4, {"code": ["tuple", INSTRUCTION]}), "reads what is not there",
    ),
    "code of another type": (
        node_of("MatMul", 4, {"code": ["tuple", ["instruction", "", "Relu", [0], "f64",
                                                 ["tuple"]]]}), "gives another type",
    ),
    "code of no op": (
        node_of("MatMul", 4, {"code": ["tuple", ["instruction", "", "Loop", [0], "f32",
                                                 ["tuple"]]]}), "not an elementwise op",
    ),
    "code that is none": (node_of("MatMul", 4, {"code": 3}), "while inferring"),
    "guard of no kind": (
        setting("graph", "guards", to=[["x", 1, 2, "", ""]]), "not a kind of guard",
    ),
    "guard on unknown sizes": (
        setting("graph", "guards", to=[["equal", "q", 2, "", ""]]), "a guard on",
    ),
    "deep size": (
        setting("graph", "guards", to=[["equal", [[1, ["div", [[1, "batch"]], "text"]]] , 1, "",
                                        ""]]), "a guard on",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_GRAPH)
def test_hostile_graph(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    packed(path)
    change, why = HOSTILE_GRAPH[name]
    forged(f"{path}.pack", graph=change)
    rejected(path, caplog, why)

"""Elements of fed sequences and optionals have the shape that their type declares."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx.errors import InvalidArgument

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'

AT = """g (seq(float[100000]) s) => (float[N] y) <int64 z = {0}> {
  x = SequenceAt(s, z) y = Relu(x) }"""
CONCAT = """g (seq(float[2, 2]) s, float[2, 2] w) => (float[a, b] y) <int64 z = {0}> {
  x = SequenceAt(s, z) y = Concat<axis = 0>(x, w) }"""
JOINED = "g (seq(float[2, 3]) s) => (float[a, b] y) { y = ConcatFromSequence<axis = 0>(s) }"
MAPPED = """g (seq(float[3]) s, float[3] w) => (seq(float[3]) r) {
  r = SequenceMap(s) <body = b (float[3] e) => (float[3] f) { f = Add(e, w) }> }"""
OPTIONAL = """g (optional(float[4]) o) => (float[4] y) {
  x = OptionalGetElement(o) y = Relu(x) }"""
OPTIONAL_SEQUENCE = """g (optional(seq(float[4])) o) => (float[N] y) <int64 z = {0}> {
  s = OptionalGetElement(o) x = SequenceAt(s, z) y = Relu(x) }"""

LIES = [
    pytest.param(AT, {"s": [np.ones(4, np.float32)]}, "s\\[0\\] has 4 in dim 0", id="at"),
    pytest.param(
        CONCAT,
        {"s": [np.ones((64, 64), np.float32)], "w": np.ones((2, 2), np.float32)},
        "s\\[0\\] has 64 and 64 in dims 0 and 1",
        id="concat",
    ),
    pytest.param(
        JOINED,
        {"s": [np.ones((2, 3), np.float32), np.ones((2, 2), np.float32)]},
        "s\\[1\\] has 2 in dim 1",
        id="joined",
    ),
    pytest.param(
        MAPPED,
        {"s": [np.ones(1, np.float32)], "w": np.ones(3, np.float32)},
        "s\\[0\\] has 1 in dim 0",
        id="mapped",
    ),
    pytest.param(OPTIONAL, {"o": np.ones(3, np.float32)}, "o has 3 in dim 0", id="optional"),
    pytest.param(
        OPTIONAL_SEQUENCE,
        {"o": [np.ones((4, 4), np.float32)]},
        "o\\[0\\] has rank 2",
        id="optional sequence",
    ),
]


def session(text: str) -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(parser.parse_model(HEAD + text).SerializeToString())


@pytest.mark.parametrize(("text", "feed", "match"), LIES)
@pytest.mark.parametrize("options", [None, sardonyx.RunOptions()], ids=["fast", "checked"])
def test_an_element_of_another_shape(
    text: str, feed: dict[str, Any], match: str, options: sardonyx.RunOptions | None
) -> None:
    with pytest.raises(InvalidArgument, match=match):
        session(text).run(None, feed, options)


def test_an_element_of_another_shape_in_an_asynchronous_run() -> None:
    done, said = threading.Event(), []

    def callback(results: Any, data: Any, error: str) -> None:
        said.append(error)
        done.set()

    session(AT).run_async(None, {"s": [np.ones(4, np.float32)]}, callback, None)
    assert done.wait(10)
    assert "s[0] has 4 in dim 0" in said[0]


def test_sizes_with_names_may_differ_between_elements() -> None:
    text = """g (seq(float[N]) s, float[N] w) => (float[a] x, float[b] y)
    <int64 z = {0}, int64 o = {1}> {
      p = SequenceAt(s, z) q = SequenceAt(s, o) x = Relu(p) y = Relu(q) }"""
    feed = {"s": [np.ones(2, np.float32), np.ones(5, np.float32)], "w": np.ones(7, np.float32)}
    for options in (None, sardonyx.RunOptions()):
        made = session(text).run(None, feed, options)
        assert [m.shape for m in made] == [(2,), (5,)]

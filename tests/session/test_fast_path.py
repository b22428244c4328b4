"""The fast path takes plain feeds; whatever is unusual about one goes the careful way."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx.errors import InvalidArgument

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x, float[N, 4] y) => (float[N, 4] z) { z = Add (x, y) }
"""


@pytest.fixture
def session() -> sardonyx.InferenceSession:
    made = sardonyx.InferenceSession(parser.parse_model(TEXT).SerializeToString())
    assert made._quick is not None
    return made


def rows(n: int) -> Any:
    return np.arange(4 * n, dtype=np.float32).reshape(n, 4)


@pytest.mark.parametrize(
    "x",
    [
        rows(3),
        np.asfortranarray(rows(3)),
        rows(6)[::2],
        rows(3)[::-1],
        rows(3).tolist(),
        np.frombuffer(b"\0" + rows(3).tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4),
    ],
    ids=["plain", "fortran", "gaps", "backwards", "list", "unaligned"],
)
def test_arrays_of_every_kind(session: sardonyx.InferenceSession, x: Any) -> None:
    (found,) = session.run(None, {"x": x, "y": rows(3)})
    np.testing.assert_array_equal(found, np.asarray(x, np.float32) + rows(3))


@pytest.mark.parametrize(
    ("feed", "match"),
    [
        ({"x": rows(3).astype(np.float64), "y": rows(3)}, "data type"),
        ({"x": rows(3).astype(">f4"), "y": rows(3)}, "data type"),
        ({"x": rows(3), "y": rows(2)}, "x \\[3, 4\\], y \\[2, 4\\]"),
        ({"x": rows(3)[0], "y": rows(3)}, "rank 1"),
        ({"x": rows(3)[:, :2].copy(), "y": rows(3)}, "2 in dim 1"),
        ({"x": rows(3), "y": rows(3), "w": rows(3)}, "Invalid input name: w"),
    ],
    ids=["type", "bytes swapped", "sizes", "rank", "fixed", "name"],
)
def test_wrong_feeds_are_told(
    session: sardonyx.InferenceSession, feed: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidArgument, match=match):
        session.run(None, feed)


def test_a_feed_may_change_while_a_run_reads_it(session: sardonyx.InferenceSession) -> None:
    feed = {"x": np.ones((20_000, 4), np.float32), "y": np.ones((20_000, 4), np.float32)}
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            feed["x"] = np.ones((20_000, 4), np.float32)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        assert all((session.run(None, feed)[0] == 2).all() for _ in range(200))
    finally:
        done.set()
        changer.join()


def test_outputs_share_no_memory_with_inputs_or_each_other() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 4] x) => (float[N, 4] a, float[N, 4] b, float[M] c) {
      shape = Constant <value_ints = [-1]> ()
      a = Relu (x)
      b = Identity (x)
      c = Reshape (a, shape)
    }
    """
    shared = sardonyx.InferenceSession(parser.parse_model(text).SerializeToString())
    x = rows(500)
    arrays = [x, *shared.run(None, {"x": x})]
    for i, one in enumerate(arrays):
        assert not any(np.shares_memory(one, other) for other in arrays[:i])


def test_what_branches_read_is_not_handed_out() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x, bool c) => (float[2] r) {
      y = Neg(x)
      r = If (c) <then_branch = a () => (float[2] d) { d = Mul(y, y) },
                  else_branch = b () => (float[2] e) { e = Identity(y) }>
    }"""
    session = sardonyx.InferenceSession(parser.parse_model(text))
    assert session._quick is not None
    for c, want in ((True, [1, 4]), (False, [-1, -2])):
        made = session.run(None, {"x": np.float32([1, 2]), "c": np.array(c)})
        assert [m.tolist() for m in made] == [want]

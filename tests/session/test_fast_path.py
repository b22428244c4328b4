"""The fast path accepts plain feeds; all others use the checked path."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx.custom_ops.native_op import C_FUNCTION, native_op
from sardonyx.errors import InvalidArgument

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x, float[N, 4] y) => (float[N, 4] z) { z = Add (x, y) }
"""


@pytest.fixture
def session() -> sardonyx.InferenceSession:
    made = sardonyx.InferenceSession(parser.parse_model(TEXT).SerializeToString())
    assert made._fast_path is not None
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
def test_wrong_feeds_are_reported(
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


def test_values_read_by_branches_are_not_outputs() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x, bool c) => (float[2] r) {
      y = Neg(x)
      r = If (c) <then_branch = a () => (float[2] d) { d = Mul(y, y) },
                  else_branch = b () => (float[2] e) { e = Identity(y) }>
    }"""
    session = sardonyx.InferenceSession(parser.parse_model(text))
    assert session._fast_path is not None
    for c, want in ((True, [1, 4]), (False, [-1, -2])):
        made = session.run(None, {"x": np.float32([1, 2]), "c": np.array(c)})
        assert [m.tolist() for m in made] == [want]


def test_a_value_that_is_several_outputs_is_copied() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x) => (float[2] a, float[2] b, float[2] c) { a = Neg(x) b = Exp(x) c = Neg(x) }"""
    session = sardonyx.InferenceSession(parser.parse_model(text))
    assert session._fast_path is not None
    a, b, c = session.run(None, {"x": np.float32([0, 0])})
    a += 5
    assert [a.tolist(), b.tolist(), c.tolist()] == [[5, 5], [1, 1], [0, 0]]


HEAD = '<ir_version: 10, opset_import: ["": 21]>'

# Inputs that share the name of a size, and that only a body reads.
BODIES = {
    "if": """g (float[N, 2] x, float[N, 2] y, bool c) => (float[a, 2] r) {
      r = If (c) <then_branch = t () => (float[p, 2] d) { d = OP },
                  else_branch = e () => (float[q, 2] f) { f = Identity(x) }> }""",
    "loop": """g (float[N, 2] x, float[N, 2] y, bool c) => (float[k, a, 2] r) <int64 n = {2}> {
      r = Loop (n, c) <body = b (int64 i, bool go) => (bool on, float[p, 2] d) {
        on = Identity(go) d = OP }> }""",
    "scan": """g (float[N, 2] x, float[N, 2] y, bool c) => (float[k, a, 2] r)
      <float[3] s = {0,0,0}> {
      u = Cast<to = 1>(c)
      v = Add(s, u)
      r = Scan <num_scan_inputs = 1, body = b (float w) => (float[p, 2] d) { d = OP }> (v) }""",
    "nested": """g (float[N, 2] x, float[N, 2] y, bool c) => (float[a, 2] r) {
      r = If (c) <then_branch = t () => (float[p, 2] d) {
          d = If (c) <then_branch = tt () => (float[p, 2] dd) { dd = OP },
                      else_branch = te () => (float[q, 2] de) { de = Identity(x) }> },
                  else_branch = e () => (float[q, 2] f) { f = Identity(x) }> }""",
}


WANTED = {
    "Concat<axis = 0>(x, y)": lambda x, y: np.concatenate([x, y]),
    "Add(x, y)": lambda x, y: x + y,
    "Sub(y, x)": lambda x, y: y - x,
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("op", WANTED)
@pytest.mark.parametrize("n", [(500, 4), (4, 500), (4, 1), (1, 4), (3, 3), (0, 3)])
def test_sizes_of_one_name_that_only_bodies_read(body: str, op: str, n: tuple[int, int]) -> None:
    model = parser.parse_model(f"{HEAD} {BODIES[body].replace('OP', op)}").SerializeToString()
    feed = {"x": rows(n[0])[:, :2].copy(), "y": -rows(n[1])[:, :2].copy(), "c": np.array(True)}

    def outcome(options: sardonyx.RunOptions | None) -> Any:
        session = sardonyx.InferenceSession(model)
        assert session._fast_path is not None
        try:
            return session.run(None, feed, options)[0]
        except InvalidArgument as error:
            return str(error)

    fast, checked = outcome(None), outcome(sardonyx.RunOptions())
    if isinstance(checked, str):
        assert fast == checked
    else:
        np.testing.assert_array_equal(fast, checked)
        want = WANTED[op](feed["x"], feed["y"])
        np.testing.assert_array_equal(fast if fast.ndim == 2 else fast[-1], want)


def test_a_run_that_fails_is_not_run_again() -> None:
    calls = []

    def count(*_: Any) -> int:
        calls.append(1)
        return 7

    function = C_FUNCTION(count)
    native_op(function, "acme", "Count", inputs="x:float", outputs="y:float", shape="first")
    text = """<ir_version: 10, opset_import: ["": 21, "acme": 1]>
    g (float[N] x) => (float[N] y) { y = acme.Count(x) }"""
    session = sardonyx.InferenceSession(parser.parse_model(text))
    assert session._fast_path is not None
    with pytest.raises(InvalidArgument, match="the function returned the error 7") as error:
        session.run(None, {"x": np.ones(3, np.float32)})
    assert len(calls) == 1
    assert "x [3]" in str(error.value)  # what was fed


def test_assumptions_of_bodies_are_checked_before_anything_runs() -> None:
    """Sizes that must broadcast are taken as equal; a run that breaks that begins anew."""
    calls = []

    def copy(inputs: Any, *rest: Any) -> int:
        calls.append(1)
        return 0

    function = C_FUNCTION(copy)
    native_op(function, "acme", "Touch", inputs="x:float", outputs="y:float", shape="first")
    text = """<ir_version: 10, opset_import: ["": 21, "acme": 1]>
    g (float[N] x, float[M] y, bool c) => (float[a] r, float[N] t) {
      t = acme.Touch(x)
      r = If (c) <then_branch = p () => (float[u] d) { d = Add(x, y) },
                  else_branch = q () => (float[w] f) { f = Identity(x) }> }"""
    session = sardonyx.InferenceSession(parser.parse_model(text))
    feed = {"x": np.ones(3, np.float32), "y": np.ones(1, np.float32), "c": np.array(True)}
    assert session.run(None, feed)[0].tolist() == [2, 2, 2]
    assert len(calls) == 1


class Raises:
    """An object whose methods fail."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise KeyError("boo")

    def __float__(self) -> float:
        raise ZeroDivisionError("boo")


@pytest.mark.parametrize("fed", [Raises(), [Raises()] * 3, 7j], ids=["array", "items", "complex"])
@pytest.mark.parametrize("options", [None, sardonyx.RunOptions()], ids=["fast", "checked"])
def test_errors_raised_by_fed_objects(
    session: sardonyx.InferenceSession, fed: Any, options: sardonyx.RunOptions | None
) -> None:
    with pytest.raises(InvalidArgument, match="the fed value cannot be converted"):
        session.run(None, {"x": fed, "y": rows(3)}, options)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_an_error_does_not_depend_on_threads(threads: int) -> None:
    """Of many indices that are wrong, the first is named."""
    text = f"{HEAD} g (float[5, 64] x, int64[N] i) => (float[N, 64] y) {{ y = Gather(x, i) }}"
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    session = sardonyx.InferenceSession(parser.parse_model(text), options)
    index = np.zeros(200_000, np.int64)
    index[100_001:] = np.arange(100, 100 + len(index) - 100_001)
    with pytest.raises(InvalidArgument, match="index 100 at position 100001"):
        session.run(None, {"x": np.zeros((5, 64), np.float32), "i": index})


# Inputs that no node reads, and outputs that no node computes.
INTERFACES = {
    "an input that is returned": """g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) {
        y = Neg(x) z = Identity(x) }""",
    "nothing but inputs": "g (float[N, 4] x) => (float[N, 4] y) { y = Identity(x) }",
    "a constant": """g (float[N, 4] x) => (int64[2] c, float[N, 4] y) {
        c = Constant<value_ints = [3, 5]>() y = Neg(x) }""",
    "an input that is not read": """g (float[N, 4] x, float[M] u) => (float[N, 4] y) {
        y = Neg(x) }""",
    "an input that is only returned": """g (float[N, 4] x, float[M] u) =>
        (float[M] v, float[N, 4] y) { v = Identity(u) y = Neg(x) }""",
}


@pytest.mark.parametrize("name", INTERFACES)
def test_unused_inputs_and_constant_outputs(name: str) -> None:
    session = sardonyx.InferenceSession(parser.parse_model(f"{HEAD} {INTERFACES[name]}"))
    assert session._fast_path is not None
    feed = {"x": rows(600), "u": np.ones(5, np.float32)}
    feed = {i.name: feed[i.name] for i in session.get_inputs()}
    fast = session.run(None, feed)
    checked = session.run(None, feed, sardonyx.RunOptions())
    assert len(fast) == len(checked) == len(session.get_outputs())
    arrays = list(feed.values())
    for one, other in zip(fast, checked, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.flags.writeable
        assert not any(np.shares_memory(one, a) for a in arrays)
        arrays.append(one)
        one += 1
    again = session.run(None, feed)
    assert all(map(np.array_equal, again, checked))


def test_the_sizes_of_an_input_that_is_not_read_are_checked() -> None:
    text = f"{HEAD} g (float[N, 4] x, float[3] u) => (float[N, 4] y) {{ y = Neg(x) }}"
    session = sardonyx.InferenceSession(parser.parse_model(text))
    with pytest.raises(InvalidArgument, match="input u has 2 in dim 0"):
        session.run(None, {"x": rows(3), "u": np.ones(2, np.float32)})

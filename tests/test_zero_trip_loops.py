"""Loop and Scan without iterations: what they collect is empty, of the shape that bodies declare.

Where inference knows a size of the body's output, that counts; of the others, what the body
declares, and 0 for what is open there too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import sardonyx
from tests.pack.packs import embedded, opened, packed, uses_pack
from tests.test_control import HEAD, check, count, model, ours

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
RUN_OPTIONS = (None, sardonyx.RunOptions())
X, TARGET = np.arange(6, dtype=np.float32), np.array([2, 3])

# Of `shape` not even the length is known, so that nothing tells the rank of what Reshape makes.
LOOP = """
g (int64 n, float[N] x, int64[R] shape) => (float[] y) <bool yes = {{1}}> {{
  y = Loop (n, yes) <body = b (int64 i, bool c) => (bool go, float{declared} d) {{
    go = Identity (c)
    d = Reshape (x, shape)
  }}>
}}
"""
SCAN = """
g (float[T] s, float[N] x, int64[R] shape) => (float[] y) {{
  y = Scan <num_scan_inputs = 1, scan_output_axes = [{axis}], body = b (float e)
      => (float{declared} d) {{ d = Reshape (x, shape) }}> (s)
}}
"""
DECLARED = {
    "[2, 3]": (2, 3), "[A, 3]": (0, 3), "[A, B]": (0, 0), "[N, 3]": (0, 3), "[?, 3]": (0, 3),
    "[0, 3]": (0, 3), "[5]": (5,), "[]": (), "": (),
}  # fmt: skip


def feeds(n: int = 0) -> dict[str, Any]:
    return {"n": count(n), "x": X, "shape": TARGET}


def shapes(session: Any, given: dict[str, Any]) -> list[Any]:
    """The shapes of the results, which are the same by both paths."""
    fast, checked = ([v.shape for v in session.run(None, given, o)] for o in RUN_OPTIONS)
    assert fast == checked
    return fast


def at_level(level: str, text: str, **given: Any) -> list[Any]:
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = getattr(sardonyx.GraphOptimizationLevel, level)
    return shapes(sardonyx.InferenceSession(model(text), options), given)


@pytest.mark.parametrize("declared", DECLARED)
def test_a_loop_gives_the_declared_shape(declared: str) -> None:
    (y,) = check(LOOP.format(declared=declared), **feeds())
    assert y.shape == (0, *DECLARED[declared])


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("axis", [0, -1])
def test_a_scan_gives_the_declared_shape(declared: str, axis: int) -> None:
    """onnxruntime refuses to scan what has no length."""
    dims = DECLARED[declared]
    (y,) = ours(SCAN.format(declared=declared, axis=axis), s=X[:0], x=X, shape=TARGET)
    assert y.shape == ((0, *dims) if axis == 0 else (*dims, 0))


def test_a_scan_of_opset_8_without_batches() -> None:
    """Each batch is a scan in itself, of a length that nothing tells where there is none."""
    text = """
    g (float[B, T, 2] s, float[N] x, int64[R] shape) => (float[] y) {
      y = Scan <num_scan_inputs = 1, body = b (float[2] e) => (float[2, 3] d) {
        d = Reshape (x, shape)
      }> (, s)
    }
    """
    (y,) = ours(text, 8, s=np.ones((0, 4, 2), np.float32), x=X, shape=TARGET)
    assert y.shape == (0, 0, 2, 3)


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_gives_the_declared_shape(level: str) -> None:
    assert at_level(level, LOOP.format(declared="[2, 3]"), **feeds()) == [(0, 2, 3)]
    scanned = {"s": X[:0], "x": X, "shape": TARGET}
    assert at_level(level, SCAN.format(declared="[2, 3]", axis=1), **scanned) == [(2, 0, 3)]


@pytest.mark.parametrize("declared", ["[7]", "[3, 2]", "[4294967296, 4294967296]"])
def test_iterations_override_the_declared_shape(declared: str) -> None:
    (y,) = ours(LOOP.format(declared=declared), **feeds(2))
    np.testing.assert_array_equal(y, np.stack([X.reshape(2, 3)] * 2))


def test_an_impossible_declared_shape_is_ignored() -> None:
    (y,) = ours(LOOP.format(declared="[4294967296, 4294967296]"), **feeds())
    assert y.shape == (0,)


# What the body makes: of known rank, with sizes that only runs know, or that the inputs tell.
KNOWN_RANKS = {
    "int64[2] shape": ("[2, 3]", "Reshape (x, shape)", (2, 3)),
    "int64[2] target": ("[2, K]", "Reshape (x, target)", (2, 0)),
    "float[2, N] of_both": ("[A, 6]", "Neg (of_both)", (2, 6)),
    "float[N, 3] other_rank": ("[7]", "Neg (other_rank)", (0, 3)),
}


@pytest.mark.parametrize("given", KNOWN_RANKS)
@pytest.mark.parametrize("is_python", [False, True])
def test_sizes_that_inference_leaves_open_are_as_declared(given: str, is_python: bool) -> None:
    """Whether native code runs the loop, or Python, as it does what has an open rank beside it."""
    declared, made, dims = KNOWN_RANKS[given]
    name = given.split()[-1]
    array = TARGET if given.startswith("int64") else np.ones((2, 6), np.float32)
    if name == "other_rank":
        array = np.ones((4, 3), np.float32)
    more = ", float[] z", ", z", ", float[2] e", "e = Reshape (x, any)"
    result, out, second, body = more if is_python else ("", "", "", "")
    text = f"""
    g (int64 n, float[6] x, int64[R] any, {given}) => (float[] y{result}) <bool yes = {{1}}> {{
      y{out} = Loop (n, yes) <body = b (int64 i, bool c)
          => (bool go, float{declared} d{second}) {{
        go = Identity (c)
        d = {made}
        {body}
      }}>
    }}
    """
    fed = {"n": count(0), "x": X, "any": TARGET, name: array}
    found = ours(text, **fed)
    assert found[0].shape == (0, *dims)
    if name != "other_rank":  # onnxruntime refuses what contradicts its own inference
        check(text, **fed)


def test_an_empty_result_is_read_by_other_bodies() -> None:
    """Its sizes are not those that the body would have given."""
    text = """
    g (int64 n, int64 m, float[N] x, int64[R] shape) => (float[] y, float[] z) <bool yes = {1}> {
      rows, z = Loop (n, yes) <body = b (int64 i, bool c) => (bool go, float[N] d, float[2, 3] e) {
        go = Identity (c)
        d = Neg (x)
        e = Reshape (x, shape)
      }>
      y, more = Loop (m, yes, rows) <body = l (int64 j, bool c2, float[T, N] v)
          => (bool go2, float[T, N] w, float[] f) {
        go2 = Identity (c2)
        w = Exp (v)
        f = Reshape (x, shape)
      }>
    }
    """
    for m in (0, 2):
        y, z = check(text, m=count(m), **feeds())
        assert (y.shape, z.shape) == ((0, 0), (0, 2, 3))


READERS = (
    "y = ReduceSum <keepdims = 0> (rows, zero)", "y = Transpose (rows)",
    "y = Concat <axis = 0> (rows, rows)", "z = Shape (rows) y = Cast <to = 1> (z)",
    "y = Exp (rows)",
)  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("declared", ["[N]", "[1000]", "[]"])
@pytest.mark.parametrize("trips", [0, 2])
def test_readers_see_the_sizes_of_the_result(reader: str, declared: str, trips: int) -> None:
    """Those that an iteration would have given size nothing that is made of an empty result."""
    text = f"""
    g (int64 n, float[N] x) => (float[] y) <bool yes = {{1}}, int64[1] zero = {{0}}> {{
      rows = Loop (n, yes) <body = b (int64 i, bool c) => (bool go, float{declared} d) {{
        go = Identity (c)
        d = Neg (x)
      }}>
      {reader}
    }}
    """
    given = {"n": count(trips), "x": X}
    if declared != "[1000]" or not trips:  # onnxruntime plans memory for what is declared
        check(text, **given)
    sizes = {shape for level in LEVELS for shape in at_level(level, text, **given)}
    assert len(sizes) == 1


@pytest.mark.parametrize("reader", READERS)
def test_readers_of_an_empty_scan(reader: str) -> None:
    """A program that takes a length of one or more for granted gives way to another."""
    text = f"""
    g (float[T] s, float[N] x) => (float[] y) <int64[1] zero = {{0}}> {{
      rows = Scan <num_scan_inputs = 1, body = b (float e) => (float[N] d) {{ d = Add (x, e) }}> (s)
      {reader}
    }}
    """
    session = sardonyx.InferenceSession(model(text))
    rows = np.zeros((0, 0), np.float32)
    wanted = {"ReduceSum": (0,), "Shape": (2,)}
    shape = next((w for name, w in wanted.items() if name in reader), rows.shape)
    assert shapes(session, {"s": X, "x": X[:4]})
    assert shapes(session, {"s": X[:0], "x": X}) == [shape]


# Where passes, or the way into a session, make bodies anew: each loop collects `d`, of open rank.
REBUILT = {
    "a carried value is dropped": """
    g (int64 n, float[N] x, int64[R] shape) => (float[] y) <bool yes = {1}, float[2] w = {1, 2}> {
      w_final, v_final, y = Loop (n, yes, w, x) <
          body = b (int64 i, bool c, float[2] w0, float[N] v0)
          => (bool go, float[2] w1, float[N] v1, float[2, 3] d) {
        go = Identity (c)
        w1 = Identity (w0)
        v1 = Exp (v0)
        d = Reshape (x, shape)
      }>
    }""",
    "a loop in a loop": """
    g (int64 n, float[N] x, int64[R] shape) => (float[] y)
    <bool yes = {1}, int64 one = {1}> {
      y = Loop (one, yes) <body = o (int64 k, bool c0) => (bool go0, float[K, 2, 3] all) {
        go0 = Identity (c0)
        all = Loop (n, yes) <body = b (int64 i, bool c) => (bool go, float[2, 3] d) {
          go = Identity (c)
          d = Reshape (x, shape)
        }>
      }>
    }""",
    "a branch of another rank around it": """
    g (int64 n, float[N] x, int64[R] shape) => (float[] y)
    <bool yes = {1}, int64 one = {1}, int64[1] zero = {0}> {
      many = Less (one, n)
      v = If (many) <then_branch = t () => (float[1, N] p) { p = Unsqueeze (x, zero) },
                     else_branch = e () => (float[N] q) { q = Identity (x) }>
      u = Neg (v)
      y = Loop (n, yes) <body = b (int64 i, bool c) => (bool go, float[2, 3] d) {
        go = Identity (c)
        d = Reshape (u, shape)
      }>
    }""",
    "a number that is now a vector": """
    g (int64 n, float[N] x, int64[R] shape) => (float[] y)
    <bool yes = {1}, float[1] one = {1}, float start = {1}> {
      final, y = Loop (n, yes, start) <body = b (int64 i, bool c, float a)
          => (bool go, float[1] a1, float[2, 3] d) {
        go = Identity (c)
        a1 = Add (a, one)
        moved = Add (x, a1)
        d = Reshape (moved, shape)
      }>
    }""",
}


@pytest.mark.parametrize("name", REBUILT)
@pytest.mark.parametrize("level", LEVELS)
def test_rebuilt_bodies_keep_their_declared_shapes(name: str, level: str) -> None:
    text = REBUILT[name]
    (y,) = check(text, **feeds())
    assert y.shape[-2:] == (2, 3)
    assert y.size == 0
    assert at_level(level, text, **feeds()) == [y.shape]


def test_a_loop_in_a_function_gives_the_declared_shape() -> None:
    text = """<ir_version: 9, opset_import: ["" : 21, "own" : 1]>
    g (int64 n, float[N] x, int64[R] shape) => (float[] y) { y = own.rows (n, x, shape) }
    <domain: "own", opset_import: ["" : 21]>
    rows (n, x, shape) => (y) {
      yes = Constant <value = bool {1}> ()
      y = Loop (n, yes) <body = b (int64 i, bool c) => (bool go, float[2, 3] d) {
        go = Identity (c)
        d = Reshape (x, shape)
      }>
    }"""
    data = onnx.parser.parse_model(text).SerializeToString()
    (want,) = onnxruntime.InferenceSession(data).run(None, feeds())
    assert shapes(sardonyx.InferenceSession(data), feeds()) == [want.shape] == [(0, 2, 3)]


def test_free_dimension_overrides_apply_to_declared_shapes() -> None:
    options = sardonyx.SessionOptions()
    options.add_free_dimension_override_by_name("A", 4)
    data = model(LOOP.format(declared="[A, 3]"))
    assert shapes(sardonyx.InferenceSession(data, options), feeds()) == [(0, 4, 3)]


def test_a_pack_keeps_declared_shapes_of_bodies(tmp_path: Path) -> None:
    text = HEAD.format(opset=21) + LOOP.format(declared="[2, A, 3]")
    path = embedded(tmp_path, onnx.parser.parse_model(text))
    packed(path)
    session = opened(path)
    assert uses_pack(session)
    assert shapes(session, feeds()) == [(0, 2, 0, 3)]


def test_a_saved_model_keeps_declared_shapes_of_bodies(tmp_path: Path) -> None:
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    sardonyx.InferenceSession(model(LOOP.format(declared="[2, A, 3]")), options)
    for runtime in (sardonyx, onnxruntime):
        (y,) = runtime.InferenceSession(options.optimized_model_filepath).run(None, feeds())
        assert y.shape == (0, 2, 0, 3)


@pytest.mark.parametrize("level", LEVELS)
def test_zero_trips_return_the_initial_value(level: str) -> None:
    text = """
    g (int64 n, float[N] x, int64[R] shape) => (float[] y) <bool yes = {1}, int64[1] zero = {0}> {
      first = Reshape (x, shape)
      y = Loop (n, yes, first) <body = b (int64 i, bool c, float[] v) => (bool go, float[] w) {
        go = Identity (c)
        w = Unsqueeze (v, zero)
      }>
    }
    """
    (y,) = check(text, **feeds())
    np.testing.assert_array_equal(y, X.reshape(2, 3))
    assert at_level(level, text, **feeds()) == [(2, 3)]
    assert at_level(level, text, **feeds(2)) == [(1, 1, 2, 3)]

"""Sessions that consume their inputs: the same results, and memory that is freed during the run."""

from __future__ import annotations

import itertools
import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx import custom_op, native_op
from sardonyx.custom_ops.native_op import C_FUNCTION
from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.ort.config_keys import Keys
from tests.session.concurrently import run_concurrently

HEAD = '<ir_version: 10, opset_import: ["": 21, "acme": 1]>'
SIDE = 300  # float[300, 300] is 360 kB: worth dropping one by one
GRAPHS = {
    "chain": "g (float[N, 300] x) => (float[N, 300] y) { a = Softmax(x) b = Neg(a) y = Tanh(b) }",
    "branches": """g (float[N, 300] x, float[300, 300] w) => (float[N, 300] p, float[N, 300] q) {
        a = MatMul(x, w) b = Softmax(x) p = Add(a, b) q = Sub(a, b) }""",
    "an input is an output": """g (float[N, 300] x) => (float[N, 300] x, float[N, 300] y) {
        y = Neg(x) }""",
    "outputs are views of inputs": """
        g (float[N, 300] x, float[N, 300] w) => (float[N, 300] y, float[M] z)
        { s = Constant <value_ints = [-1]> () y = Identity(x) z = Reshape(w, s) }""",
    "outputs are views of an output": """
        g (float[N, 300] x) => (float[N, 300] y, float[M] z, float[N, 300] w) {
        s = Constant <value_ints = [-1]> () y = Neg(x) z = Reshape(y, s) w = Tanh(y) }""",
    "an input is read twice": """g (float[N, 300] x) => (float[N, 300] y) {
        a = Softmax(x) b = Softmax<axis = 0>(a) y = Sub(b, x) }""",
    "a view of an input is read later": """g (float[N, 300] x) => (float[M] y) {
        s = Constant <value_ints = [-1]> () v = Reshape(x, s) a = Softmax(x)
        b = Reshape(a, s) y = Sub(b, v) }""",
    "an input is not read": """g (float[N, 300] x, float[N, 300] w) => (float[N, 300] y) {
        y = Neg(x) }""",
    "many outputs": """g (float[N, 300] x, float[300, 300] w, float[300, 300] v) =>
        (float[N, 300] a, float[N, 300] b, float[N, 300] c, float[N, 300] d) {
        a = MatMul(x, w) b = MatMul(a, v) c = MatMul(b, w) d = Add(c, x) }""",
    "an output that is read": """g (float[N, 300] x) => (float[N, 300] y, float[N, N] z) {
        y = Softmax(x) t = Transpose(y) z = MatMul(y, t) }""",
    "a concatenation": """g (float[N, 300] x, float[N, 300] w) => (float[M, 300] y) {
        a = Neg(x) b = Tanh(w) y = Concat<axis = 0>(a, b) }""",
    "a constant": "g (float[N, 300] x) => (float[2] y) { y = Constant<value_floats = [1., 2.]>() }",
    "a branch": """g (float[N, 300] x, float[N, 300] w) => (float[N, 300] y) {
        s = ReduceSum<keepdims = 0>(x) t = Sub(s, s) c = Equal(s, t)
        y = If (c) <then_branch = p () => (float[N, 300] d) { d = Identity(w) },
                    else_branch = q () => (float[N, 300] f) { f = Add(x, w) }> }""",
}  # fmt: skip


# Programs that are not one native segment: nothing is computed, a branch is chosen by data.
KEPT = {"a constant", "a branch"}


def session_of(
    graph: str,
    consumes: bool = True,
    mode: sardonyx.ExecutionMode = sardonyx.ExecutionMode.ORT_SEQUENTIAL,
    **entries: str,
) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.execution_mode = mode
    options.intra_op_num_threads = 1 if mode == sardonyx.ExecutionMode.ORT_SEQUENTIAL else 2
    if consumes:
        options.add_session_config_entry(Keys.CONSUME_INPUTS, "1")
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return sardonyx.InferenceSession(parser.parse_model(f"{HEAD} {graph}"), options)


def feed_of(session: sardonyx.InferenceSession, rows: int, seed: int = 0) -> dict[str, Any]:
    numbers = np.random.default_rng(seed)
    shapes = {
        i.name: [d if isinstance(d, int) else rows for d in i.shape] for i in session.get_inputs()
    }
    return {n: numbers.standard_normal(shape, np.float32) for n, shape in shapes.items()}


def weak(feed: dict[str, Any]) -> dict[str, weakref.ref[Any]]:
    return {name: weakref.ref(array) for name, array in feed.items()}


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("entries", [{}, {Keys.CACHE_PAGES: "1"}], ids=["blocks", "pages"])
@pytest.mark.parametrize("mode", sardonyx.ExecutionMode.__members__.values(), ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_results_are_those_of_a_plain_session(
    name: str, mode: sardonyx.ExecutionMode, entries: dict[str, str]
) -> None:
    plain, session = session_of(GRAPHS[name], False), session_of(GRAPHS[name], mode=mode, **entries)
    for rows, seed in itertools.product((SIDE, 1, SIDE), range(2)):
        feed = feed_of(plain, rows, seed)
        names = set(feed)
        expected = plain.run(None, feed)
        arrays = weak(feed)
        assert_equal(session.run(None, feed), expected)
        assert set(feed) == (names if name in KEPT else set())
        assert {n for n, array in arrays.items() if array() is not None} == set(feed)


def test_arrays_that_the_caller_holds_are_not_written() -> None:
    session = session_of(GRAPHS["many outputs"])
    held = feed_of(session, SIDE)
    copies = {name: array.copy() for name, array in held.items()}
    first = session.run(None, dict(held))
    second = session.run(None, dict(held))
    assert_equal(second, first)
    assert_equal(list(held.values()), list(copies.values()))


def test_one_array_under_two_names() -> None:
    session = session_of("g (float[N] x, float[N] w) => (float[N] y) { a = Neg(x) y = Mul(a, w) }")
    array = np.full(100_000, 3, np.float32)
    gone = weakref.ref(array)
    feed = {"x": array, "w": array}
    del array
    (found,) = session.run(None, feed)
    assert (found == -9).all()
    assert gone() is None


CHAIN = """g (float[N] a, float[N] b, float[N] c, float[N] d) =>
  (float[N] p, float[N] q, float[N] r, float[N] s)
  { p = Neg(a) u = Mul(p, b) q = Tanh(u) v = Mul(q, c) r = Tanh(v) w = Mul(r, d) s = Tanh(w) }"""


def test_arrays_are_freed_and_outputs_allocated_as_the_run_goes() -> None:
    session = session_of(CHAIN)
    pool = session._program.pool
    feed = {name: np.ones(100_000, np.float32) for name in "abcd"}
    freed: list[tuple[str, int]] = []
    for name, array in feed.items():
        weakref.finalize(array, lambda name=name: freed.append((name, pool.live_blocks)))
    del array
    outputs = session.run(None, feed)
    assert len(outputs) == pool.live_blocks == 4
    assert [name for name, _ in freed] == list("abcd")
    # With the arena, if it is a block: the outputs at the time, each written after the one before.
    n_arenas = freed[0][1] - 1
    assert [n - n_arenas for _, n in freed] == [1, 2, 3, 4]


def test_small_arrays_are_freed_with_the_run() -> None:
    """Taking the GIL for each would cost more than their memory is worth."""
    session = session_of(CHAIN)
    feed = {name: np.ones(10, np.float32) for name in "abcd"}
    arrays = weak(feed)
    session.run(None, feed)
    assert feed == {}
    assert all(array() is None for array in arrays.values())


@pytest.mark.parametrize(("consumes", "n_blocks"), [(True, 11), (False, 20)])
def test_peak_resident_memory(consumes: bool, n_blocks: int) -> None:
    """Ten activations become ten gradients: each takes the pages of one that was read."""
    names = [f"x{i}" for i in range(10)]
    declared = ", ".join(f"float[N] {n}" for n in names)
    made = ", ".join(f"float[N] y{n}" for n in names)
    graph = f"g ({declared}) => ({made}) {{ {' '.join(f'y{n} = Neg({n})' for n in names)} }}"
    entries = {Keys.CACHE_PAGES: "1", Keys.SHARE_BLOCK_POOL: "1"}
    source = session_of("g (float[N] x) => (float[N] y) { y = Neg(x) }", False, **entries)
    session = session_of(graph, consumes, **entries)
    pool = session._program.pool
    assert pool is source._program.pool
    pool.release_cached()
    size = 100 * mmap.PAGESIZE
    ones = np.ones(size // 4 - 16, np.float32)  # less the header of a block
    feed = {n: source.run(None, {"x": ones})[0] for n in names}
    outputs = session.run(None, feed)
    assert all((y == 1).all() for y in outputs)
    del outputs
    feed.clear()
    assert pool.cached_bytes == n_blocks * size


def test_large_values_take_memory_while_they_live() -> None:
    """One block for the values, each in place of the one before; then two for the outputs."""
    graph = """g (float[N, 100] x) => (float[N, 100] y, float[N, 100] z) {
        a = Softmax(x) b = Sub(a, x) c = Softmax(b) d = Mul(c, c) p = ReduceSum<keepdims = 0>(d)
        s = Shape(x) y = Expand(p, s) q = Neg(p) z = Expand(q, s) }"""
    session = session_of(graph, **{Keys.CACHE_PAGES: "1"})
    pool = session._program.pool
    y, z = session.run(None, {"x": np.ones((1023, 100), np.float32)})
    assert (y == -z).all()
    del y, z
    pages = -(-(1023 * 400 + 64) // mmap.PAGESIZE)  # with the header of a block
    assert pool.cached_bytes == 2 * pages * mmap.PAGESIZE


INTACT = {
    "type": ({"x": np.ones(3), "y": np.ones(3, np.float32)}, InvalidArgument, "data type"),
    "rank": ({"x": np.ones((1, 3), np.float32), "y": np.ones(3, np.float32)}, InvalidArgument,
             "rank 2"),
    "sizes": ({"x": np.ones(3, np.float32), "y": np.ones(2, np.float32)}, InvalidArgument,
              "3 and 2"),
    "missing": ({"x": np.ones(3, np.float32)}, ValueError, "y"),
    "name": ({"x": np.ones(3, np.float32), "z": np.ones(3, np.float32)}, ValueError, "y|z"),
    "limit": ({"x": np.ones(10**6, np.float32), "y": np.ones(10**6, np.float32)}, RuntimeException,
              "allows 1,000,000"),
}  # fmt: skip


@pytest.mark.parametrize("name", INTACT)
def test_a_run_that_does_not_start_keeps_the_feed(name: str) -> None:
    feed, kind, said = INTACT[name]
    graph = "g (float[N] x, float[M] y) => (float[K] z) { a = Neg(x) z = Add(a, y) }"
    session = session_of(graph, **{"sardonyx.max_arena_bytes": "1MB"})
    fed = dict(feed)
    with pytest.raises(kind, match=said):
        session.run(None, fed)
    assert fed.keys() == feed.keys()
    assert all(fed[n] is feed[n] for n in feed)
    good = {n: np.ones(5, np.float32) for n in "xy"}
    assert (session.run(None, good)[0] == 0).all()


def test_broken_assumptions_recompile_with_the_feed() -> None:
    """Sizes that must broadcast are taken as equal; a run that breaks that begins anew."""
    session = session_of("g (float[N] x, float[M] y) => (float[K] z) { a = Neg(x) z = Add(a, y) }")
    assert session._fast_path is not None
    for n, m in ((4, 4), (4, 1), (1, 4), (4, 4)):
        feed = {"x": np.full(n, 2, np.float32), "y": np.full(m, 5, np.float32)}
        assert session.run(None, feed)[0].tolist() == [3] * 4


def test_an_error_in_a_step() -> None:
    """Inputs that were read are freed, others are in the feed again; the step's error is raised."""
    session = session_of(
        """g (float[N, 300] x, int64[K] i, float[K, 300] w) => (float[K, 300] y) {
        a = Neg(x) b = Gather(a, i) y = Mul(b, w) }"""
    )
    feed = {
        "x": np.ones((SIDE, 300), np.float32),
        "i": np.full(4, 999),
        "w": np.ones((4, 300), np.float32),
    }
    read = weakref.ref(feed["x"])
    with pytest.raises(InvalidArgument, match="999"):
        session.run(None, feed)
    assert "w" in feed
    assert "x" not in feed
    assert read() is None
    feed |= {"x": np.ones((SIDE, 300), np.float32), "i": np.full(4, 9)}
    assert (session.run(None, feed)[0] == -1).all()


@pytest.mark.usefixtures("unregistered_ops")
def test_a_step_sees_what_was_freed_before_it() -> None:
    seen: list[bool] = []
    gone: list[weakref.ref[Any]] = []

    def probe(*_: Any) -> int:
        seen.extend(array() is None for array in gone)
        return 0

    function = C_FUNCTION(probe)
    native_op(function, "acme", "Probe", inputs="x:float", outputs="y:float", shape="first")
    session = session_of(
        "g (float[N] x, float[N] w) => (float[N] z) { a = Neg(x) y = acme.Probe(a) z = Mul(y, w) }"
    )
    assert session._fast_path is not None
    feed = {name: np.ones(100_000, np.float32) for name in "xw"}
    gone += weak(feed).values()
    session.run(None, feed)
    assert seen == [True, False]


@pytest.mark.usefixtures("unregistered_ops")
def test_programs_with_a_node_in_python_keep_the_feed() -> None:
    @custom_op("acme", "Twice", inputs="x:float", outputs="y:float", shape="first")
    def twice(x: Any) -> Any:
        return 2 * x

    session = session_of(
        "g (float[N] x, float[N] w) => (float[N] z) { a = Neg(x) y = acme.Twice(a) b = Mul(y, w) "
        "z = Add(b, x) }"
    )
    assert session._fast_path is None
    feed = {name: np.full(100_000, 3, np.float32) for name in "xw"}
    for _ in range(2):
        assert (session.run(None, feed)[0] == -15).all()
        assert feed.keys() == {"x", "w"}


CALLS: dict[str, Callable[[sardonyx.InferenceSession, dict[str, Any]], Any]] = {
    "output names": lambda session, feed: session.run(["y"], feed),
    "run options": lambda session, feed: session.run(None, feed, sardonyx.RunOptions()),
    "OrtValues": lambda session, feed: [
        value.numpy()
        for value in session.run_with_ort_values(
            None, {n: sardonyx.OrtValue.ortvalue_from_numpy(a) for n, a in feed.items()}
        )
    ],
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_keep_the_feed(name: str) -> None:
    session = session_of(GRAPHS["chain"])
    feed = feed_of(session, 4)
    expected = session.run(None, dict(feed))
    for _ in range(2):
        assert_equal(CALLS[name](session, feed), expected)
        assert feed.keys() == {"x"}


def test_bound_inputs_serve_several_runs() -> None:
    session = session_of(GRAPHS["chain"])
    feed = feed_of(session, SIDE)
    expected = session.run(None, dict(feed))
    binding = session.io_binding()
    binding.bind_cpu_input("x", feed["x"])
    binding.bind_output("y")
    for _ in range(3):
        session.run_with_iobinding(binding)
        assert_equal(binding.copy_outputs_to_cpu(), expected)


@pytest.mark.parametrize("entries", [{}, {Keys.CACHE_PAGES: "1"}], ids=["blocks", "pages"])
def test_runs_of_several_threads(entries: dict[str, str]) -> None:
    session = session_of(GRAPHS["many outputs"], **entries)
    plain = session_of(GRAPHS["many outputs"], False)
    rows = (16, 64, 150, SIDE)
    expected = {n: plain.run(None, feed_of(plain, n)) for n in rows}

    def caller(n: int) -> Callable[[int], None]:
        def work(_: int) -> None:
            feed = feed_of(session, n)
            assert_equal(session.run(None, feed), expected[n])
            assert feed == {}

        return work

    run_concurrently(*map(caller, rows), times=10)
    assert session._program.pool.live_blocks == 0

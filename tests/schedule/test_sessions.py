"""The order that a session was asked for: options, programs, packs, and the same results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.compile import Compiled
from sardonyx.errors import InvalidArgument
from sardonyx.program.native import NativeSegment
from sardonyx.program.segment_builder import SegmentBuilder
from sardonyx.schedule import Order
from tests.pack.packs import opened, packed, uses_pack

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
ORDERS = [order.value for order in Order]


def model(text: str) -> bytes:
    return bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())


WIDE = model("""
    g (float[N,8] x) => (float[M] y) <int64[1] last = {1}, int64[1] all = {0}> {
      a = Softmax(x) b = Softmax<axis = 0>(x)
      p = ReduceSum<keepdims = 0>(a, last) q = ReduceSum<keepdims = 0>(b, last)
      c = Softmax(a) r = ReduceMax<keepdims = 0>(c, last)
      s = Concat<axis = 0>(p, q) y = Concat<axis = 0>(s, r)
    }""")
LOOP = model("""
    g (int64 n, float[4,8] x) => (float[4,8] y, float[K,4] z) <bool yes = {1}> {
      y, z = Loop(n, yes, x) <body = b (int64 i, bool go, float[4,8] s)
          => (bool on, float[4,8] t, float[4] m) <int64[1] last = {1}> {
        on = Identity(go)
        u = Softmax(s) v = Softmax<axis = 0>(s) w = Add(u, v)
        k = Shape(w) o = Expand(x, k) t = Mul(w, o)
        m = ReduceSum<keepdims = 0>(u, last)
      }>
    }""")
# Det has no kernel: the If and its bodies run in Python.
BRANCH = model("""
    g (bool c, float[4,4] x) => (float[4,4] y) {
      a = Softmax(x) d = Softmax<axis = 0>(x)
      y = If(c) <
        then_branch = t () => (float[4,4] f) { e = Softmax(a) f = Add(e, d) },
        else_branch = u () => (float[4,4] h) {
          e = Softmax(a) k = Shape(e) o = Expand(d, k) v = Det(x) h = Mul(o, v)
        }
      >
    }""")
SCAN = model("""
    g (float[4] s, float[T,4] x) => (float[4] y, float[T,4] z) {
      y, z = Scan <num_scan_inputs = 1,
        body = b (float[4] t, float[4] v) => (float[4] u, float[4] w) {
          a = Softmax(v) b = Exp(v) c = Mul(a, b) d = Softmax(t) u = Add(c, d) w = Sub(a, d)
        }> (s, x)
    }""")
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
MODELS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "wide": (WIDE, {"x": X}),
    "loop": (LOOP, {"n": np.array(3), "x": X}),
    "then": (BRANCH, {"c": np.array(True), "x": X[:, :4].copy()}),
    "else": (BRANCH, {"c": np.array(False), "x": X[:, :4].copy()}),
    "scan": (SCAN, {"s": X[0, :4], "x": X[:, :4].copy()}),
}


def session(source: Any, order: str | None = None, **keys: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    for key, value in (("execution_order", order), *keys.items()):
        if value is not None:
            options.add_session_config_entry(f"sardonyx.{key}", value)
    return ort.InferenceSession(source, options)


def names(found: ort.InferenceSession) -> list[str]:
    compiled: Compiled = found._compiled
    return [node.name or node.outputs[0].name for node, *_ in compiled.program.nodes()]


@pytest.mark.parametrize("name", MODELS)
def test_results_do_not_depend_on_the_order(name: str) -> None:
    source, feeds = MODELS[name]
    want = session(source).run(None, feeds)
    for order in ORDERS:
        for effort in "03":
            got = session(source, order, order_effort=effort).run(None, feeds)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("property_", "key", "like"),
    [
        (ort.ExecutionOrder.DEFAULT, None, "least_peak"),
        (ort.ExecutionOrder.PRIORITY_BASED, None, "priority_based"),
        (ort.ExecutionOrder.MEMORY_EFFICIENT, None, "memory_efficient"),
        (ort.ExecutionOrder.PRIORITY_BASED, "reverse_depth_first", "reverse_depth_first"),
        (ort.ExecutionOrder.PRIORITY_BASED, "least_peak", "least_peak"),
    ],
)
def test_the_key_wins_over_the_property(property_: Any, key: str | None, like: str) -> None:
    options = ort.SessionOptions()
    options.execution_order = property_
    if key is not None:
        options.add_session_config_entry("sardonyx.execution_order", key)
    found = ort.InferenceSession(WIDE, options)
    assert found._base.order.order.value == like
    assert names(found) == names(session(WIDE, like))


def test_orders_differ() -> None:
    assert names(session(WIDE, "priority_based")) != names(session(WIDE, "reverse_depth_first"))


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("execution_order", "fastest", "must be one of least_peak, reverse_depth_first"),
        ("execution_order", "", "must be one of least_peak"),
        ("order_effort", "4", "must be one of 0, 1, 2, 3, got '4'"),
        ("order_effort", "-1", "must be one of 0, 1, 2, 3"),
        ("dim_hints", "batch", "as in batch=8,sequence=128, got 'batch'"),
        ("dim_hints", "batch=", "names of dims with a size"),
        ("dim_hints", "=3", "names of dims with a size"),
        ("dim_hints", "batch=0", "a size from 1 on"),
        ("dim_hints", "batch=-2", "a size from 1 on"),
        ("dim_hints", "batch=2,", "a size from 1 on"),
        ("dim_hints", "batch=1.5", "a size from 1 on"),
        ("dim_hints", "batch=" + "9" * 400, "a size from 1 on"),
        ("dim_hints", "batch=2,batch=3", "gives batch two sizes: 2 and 3"),
    ],
)
def test_wrong_values_of_keys(key: str, value: str, match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        session(WIDE, **{key: value})


@pytest.mark.parametrize("value", ["N=8", " N = 8 ", "a=b=1,N=8", ""])
def test_hints(value: str) -> None:
    session(WIDE, dim_hints=value).run(None, {"x": X})


def test_a_hint_for_an_unknown_dim_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    session(WIDE, dim_hints="N=8,n=3")
    assert "sardonyx.dim_hints names n, and the open dims of the inputs are N" in caplog.text
    assert "names N" not in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda o: setattr(o, "execution_order", ort.ExecutionOrder.PRIORITY_BASED),
        lambda o: o.add_session_config_entry("sardonyx.execution_order", "reverse_depth_first"),
        lambda o: o.add_session_config_entry("sardonyx.order_effort", "1"),
        lambda o: o.add_session_config_entry("sardonyx.dim_hints", "N=8"),
    ],
    ids=["property", "order", "effort", "hints"],
)
def test_other_orders_are_other_programs(
    change: Callable[[ort.SessionOptions], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sardonyx.load.source._SETTLED_NS", 0)
    path = tmp_path / "model.onnx"
    path.write_bytes(WIDE)
    options = ort.SessionOptions()
    plain, same = ort.InferenceSession(path), ort.InferenceSession(path, options)
    change(options)
    other = ort.InferenceSession(path, options)
    assert plain._compiled.program is same._compiled.program
    assert plain._compiled.program is not other._compiled.program


def test_a_session_from_a_pack_has_its_own_order(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(WIDE)
    packed(str(path))
    by_order = {}
    for order in ORDERS:
        found = opened(str(path), execution_order=order)
        assert uses_pack(found)
        by_order[order] = names(found)
        assert names(found) == names(session(WIDE, order))
    assert by_order["priority_based"] != by_order["reverse_depth_first"]


def test_recompiled_sessions_keep_the_order() -> None:
    """A session that compiles again because equal names differ does so in the order asked for."""
    source = model("""
        g (float[N,8] x, float[N,8] z) => (float[M,8] y) {
          a = Softmax(x) b = Softmax<axis = 0>(z) c = Softmax(b) y = Concat<axis = 0>(a, c)
        }""")
    for order in ("priority_based", "reverse_depth_first"):
        found = session(source, order)
        program, before = found._compiled.program, names(found)
        found.run(None, {"x": X, "z": X[:2]})
        assert found._compiled.program is not program
        assert names(found) == before


def native_steps(found: ort.InferenceSession, dims: dict[str, int]) -> list[str]:
    """The nodes of a program that is one native segment, in the order that native code has."""
    (segment,) = found._compiled.program.segments
    assert isinstance(segment, NativeSegment)
    assert segment._runnable is not None
    (run,) = segment._runnable.memory([dims.get(name, -1) for name in segment.names])
    (part,) = segment.items
    assert isinstance(part, SegmentBuilder)
    return [part.steps[i].node.name for i in run["steps"]]


# The wide branch comes first by size, and last by number.
UNEVEN = model("""
    g (float[1,A] u, float[1,B] v, float[64,1] k) => (float[1,C] y) <int64[1] rows = {0}> {
      [a] a = Mul(u, k) [b] b = Softmax(a) [p] p = ReduceSum(b, rows)
      [c] c = Mul(v, k) [d] d = Softmax(c) [q] q = ReduceSum(d, rows)
      [y] y = Concat<axis = 1>(p, q)
    }""")


def test_native_code_keeps_the_order_that_was_asked_for() -> None:
    dims = {"A": 400, "B": 100}
    for order in ORDERS:
        found = session(UNEVEN, order)
        asked = [node.name for node, *_ in found._compiled.program.nodes()]
        kept = native_steps(found, dims) == asked
        assert kept == (order != "least_peak")
    assert native_steps(session(UNEVEN), dims)[0] == "a"
    assert native_steps(session(UNEVEN, "reverse_depth_first"), dims)[0] == "c"

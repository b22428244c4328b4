"""Rewrites that would change results or reject legal models: none is applied."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import sardonyx
from tests.two_paths import both

HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
F = np.float32


def rows(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(F)


def same(text: str, feeds: dict[str, Any], tolerance: float = 1e-6) -> list[Any]:
    """The outputs, after checking that onnxruntime and every level of ours agree on them."""
    data = parser.parse_model(HEAD + text).SerializeToString()
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    want = onnxruntime.InferenceSession(data, plain).run(None, feeds)
    for level in sardonyx.GraphOptimizationLevel:
        options = sardonyx.SessionOptions()
        options.graph_optimization_level = level
        got = both(lambda o=options: sardonyx.InferenceSession(data, o), feeds)
        for a, b in zip(want, got, strict=True):
            assert a.shape == b.shape, level
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
    return want


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul(x, c)",
        "y = Div(x, c)",
        "y = Pow(x, c)",
    ],
)
def test_a_number_near_one_is_not_one(body: str) -> None:
    same(
        f"g (float[2,3] x) => (float[2,3] y) <float c = {{1.001}}> {{ {body} }}",
        {"x": abs(rows(2, 3))},
    )


def test_gelu_with_another_constant_is_not_fused() -> None:
    text = """g (float[4] x) => (float[4] y)
        <float r = {1.41421356}, float one = {1.001}, float h = {0.5}> {
        a = Div(x, r)  e = Erf(a)  s = Add(e, one)  m = Mul(x, s)  y = Mul(m, h) }"""
    same(text, {"x": rows(4)})


def test_layer_norm_needs_equal_axes() -> None:
    text = """g (float[4,4] x) => (float[4,4] y)
        <float e = {0.00001}, float two = {2.0}, float[4] s = {1,2,3,4}, float[4] h = {4,3,2,1}>
        {
        m0 = ReduceMean<axes=[0]>(x)  m1 = ReduceMean<axes=[1]>(x)  d0 = Sub(x, m0)  d1 = Sub(x, m1)
        q = Pow(d1, two)  v = ReduceMean<axes=[1]>(q)  ve = Add(v, e)  r = Sqrt(ve)  n = Div(d0, r)
        k = Mul(n, s)  y = Add(k, h) }"""
    same(text, {"x": rows(4, 4)}, 1e-5)


def test_attributes_that_differ_in_sign_of_zero() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z) <float one = {1.0}> {
        a = Elu<alpha=0.0>(x)  b = Elu<alpha=-0.0>(x)  y = Div(one, a)  z = Div(one, b) }"""
    data = parser.parse_model(HEAD + text)
    y, z = sardonyx.InferenceSession(data).run(None, {"x": np.array([-1, -2], F)})
    assert (y == -np.inf).all()
    assert (z == np.inf).all()


@pytest.mark.parametrize(("k", "n"), [(1, 3), (3, 3)])
def test_sizes_that_depend_on_data_are_not_assumed(k: int, n: int) -> None:
    text = """g (float[K] x, float[N] z) => (float[M] y) { nz = NonZero(z)  s = Shape<start=1>(nz)
        y = Expand(x, s) }"""
    assert same(text, {"x": rows(k), "z": np.ones(n, F)})[0].shape == (3,)


@pytest.mark.parametrize("twice", [False, True])
def test_names_of_data_dependent_sizes_survive_rewrites(twice: bool) -> None:
    second = "d = NonZero(x)  e = Add(c, d)" if twice else "e = Identity(c)"
    text = f"""g (float[N] x, int64[1,M] r) => (float[P,Q] o) {{
        i = Identity(x)  b = NonZero(i)  c = Neg(b)  {second}  y = Add(e, r)  s = Shape(y)
            o = ConstantOfShape(s) }}"""
    feeds = {"x": np.ones(1, F), "r": np.zeros((1, 3), np.int64)}
    assert same(text, feeds)[0].shape == (1, 3)


def test_constants_that_raise_the_rank() -> None:
    same(
        "g (float[3] x) => (float[1,1,3] y) <float[1,1,1] c = {1.0}> { y = Mul(x, c) }",
        {"x": rows(3)},
    )


def test_a_matmul_of_unknown_rank() -> None:
    text = """g (float[2,3] x, int64[2] s) => (float[2,2] y)
        <float[3,2] w = {1,2,3,4,5,6}, float[2] c = {1,2}> {
        r = Reshape(x, s)  m = MatMul(r, w)  y = Add(m, c) }"""
    same(text, {"x": rows(2, 3), "s": np.array([2, 3])})


def test_a_convolution_whose_bias_adds_channels() -> None:
    text = """g (float[1,1,2,2] x) => (float[1,3,2,2] y)
        <float[1,1,1,1] w = {2.0}, float[3,1,1] c = {1,2,3}> {
        a = Conv(x, w)  y = Add(a, c) }"""
    same(text, {"x": rows(1, 1, 2, 2)})


def test_a_branch_that_returns_an_input() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) <bool t = {1}> {
        k = If(t) <then_branch = a () => (bool p) { p = Not(c) },
            else_branch = b () => (bool q) { q = Identity(c) }>
        y = If(k) <then_branch = d () => (float[2] u) { u = Neg(x) },
            else_branch = e () => (float[2] v) { v = Identity(x) }> }"""
    for flag in (True, False):
        same(text, {"x": rows(2), "c": np.array(flag)})


def test_a_matmul_over_an_empty_axis() -> None:
    text = """g (float[2,3,K] x) => (float[2,3,2] y) <float[0,2] w = {}, float[2] c = {1,2}> {
        m = MatMul(x, w)  y = Add(m, c) }"""
    assert same(text, {"x": np.zeros((2, 3, 0), F)})[0].tolist() == [[[1, 2]] * 3] * 2


@pytest.mark.parametrize("p", [0, 1, 2])
def test_slices_to_a_size_that_may_be_zero(p: int) -> None:
    text = """g (float[5] x, float[P] z) => (float[Q] y, float[R] w)
        <int64[1] one = {1}, int64[1] o = {0}> {
        s = Shape(z)  n = Neg(s)  m = Sub(s, one)  big = Shape(x)
        y = Slice(x, n, big)  w = Slice(x, o, m) }"""
    same(text, {"x": rows(5), "z": np.zeros(p, F)})


def test_an_empty_batch_determines_all_sizes() -> None:
    text = """g (float[B,4,6] x) => (float[B,P,Q,R] y)
        <int64 z = {0}, int64[1] o = {0}, int64[2] rest = {-1, 3}> {
        s = Shape(x)  b = Gather(s, o)  t = Concat<axis=0>(b, rest)  u = Unsqueeze(t, o)
            v = Squeeze(u, o)
        w = Reshape(x, v)  k = Unsqueeze(w, o)  y = Identity(k) }"""
    data = parser.parse_model(HEAD + text)
    (y,) = sardonyx.InferenceSession(data).run(None, {"x": np.zeros((0, 4, 6), F)})
    assert y.shape == (1, 0, 8, 3)


def test_an_overridable_initializer_keeps_its_symbolic_dims() -> None:
    data = parser.parse_model(
        HEAD + "g (float[1] x, float[N] w) => (float[M] y) <float[3] w = {1,2,3}> { y = Mul(x, w) }"
    )
    session = sardonyx.InferenceSession(data)
    x = np.array([2], F)
    assert session.run(None, {"x": x})[0].tolist() == [2, 4, 6]
    assert session.run(None, {"x": x, "w": np.ones(2, F)})[0].tolist() == [2, 2]


def test_a_body_that_reads_the_output_of_a_later_node() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = a () => (float[2] p) { p = Neg(late) },
            else_branch = b () => (float[2] q) { q = Abs(late) }>
        late = Exp(x) }"""
    data = parser.parse_model(HEAD + text)
    (y,) = sardonyx.InferenceSession(data).run(None, {"x": np.zeros(2, F), "c": np.array(True)})
    assert y.tolist() == [-1, -1]


def test_a_matmul_stays_outside_a_loop() -> None:
    text = """g (float[2,2] x, int64 n) => (float[2,2] y)
        <float[2,2] w = {1,2,3,4}, float[2] c = {1,1}, bool t = {1}> {
        m = MatMul(x, w)
        y = Loop(n, t, x) <body = b (int64 i, bool go, float[2,2] a) => (bool on, float[2,2] r) {
          on = Identity(go)  k = Add(m, c)  r = Add(a, k) }> }"""
    same(text, {"x": rows(2, 2), "n": np.array(3)})


def test_a_broken_assumption_met_by_many_threads() -> None:
    data = parser.parse_model(HEAD + "g (float[N] x, float[N] z) => (float[M] y) { y = Add(x, z) }")
    x, z = np.ones(3, F), np.ones(1, F)
    for _ in range(5):
        session, wrong = sardonyx.InferenceSession(data), []

        def work(session: Any = session, wrong: list[Any] = wrong) -> None:
            try:
                wrong.extend(v for v in session.run(None, {"x": x, "z": z})[0] if v != 2)
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert wrong == []


def test_recompiling_needs_no_source(tmp_path: Any) -> None:
    data = parser.parse_model(HEAD + "g (float[N] x, float[N] z) => (float[M] y) { y = Add(x, z) }")
    path = tmp_path / "m.onnx"
    path.write_bytes(data.SerializeToString())
    options = sardonyx.SessionOptions()
    with path.open("rb") as file:
        sessions = [
            sardonyx.InferenceSession(path, options),
            sardonyx.InferenceSession(file, options),
        ]
    path.unlink()
    options.set_load_cancellation_flag(True)
    for session in sessions:
        assert session.run(None, {"x": np.ones(3, F), "z": np.ones(1, F)})[0].shape == (3,)


def test_a_loop_without_steps_can_be_ended() -> None:
    text = """g (float[1] x, bool c) => (float[1] y) {
      y, z = Loop("", c, x, x) <body = b (int64 i, bool go, float[1] a, float[1] d)
        => (bool on, float[1] n, float[1] m) {
          on = Identity(go)  n = Identity(d)  m = Identity(a) }> }"""
    session, options = (
        sardonyx.InferenceSession(parser.parse_model(HEAD + text)),
        sardonyx.RunOptions(),
    )
    timer = threading.Timer(0.05, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(sardonyx.SardonyxError, match="terminate"):
        session.run(None, {"x": rows(1), "c": np.array(True)}, options)


def nested(depth: int, kind: str) -> str:
    """Loops, or branches with nodes out of order, one in the other."""
    if kind == "if":
        body = "v = Neg(u)  u = Abs(x)"
        for i in range(depth):
            name = "v" if i == 0 else f"v{i}"
            body = f"""v{i + 1} = If(c) <
                then_branch = t{i} () => (float[N] {name}) {{ {body} }},
                else_branch = e{i} () => (float[N] w{i}) {{ w{i} = Neg(x) }}>"""
        return f"g (float[N] x, bool c) => (float[N] v{depth}) {{ {body} }}"
    body = "r = Concat<axis=0>(a0, x)"
    for i in range(depth):
        name = "r" if i == 0 else f"r{i}"
        body = f"""r{i + 1} = Loop(n, t, a{i + 1}) <
            body = b{i} (int64 i{i}, bool g{i}, float[M] a{i}) => (bool o{i}, float[K] {name}) {{
                o{i} = Identity(g{i})  {body} }}>"""
    return f"""g (float[N] x, int64 n) => (float[P] r{depth}) <bool t = {{1}}> {{
        a{depth} = Identity(x)  {body} }}"""


@pytest.mark.parametrize("kind", ["if", "loop"])
def test_compile_time_of_deep_nesting(kind: str) -> None:
    data = parser.parse_model(HEAD + nested(20, kind))
    started = time.process_time()
    sardonyx.InferenceSession(data)
    assert time.process_time() - started < 20

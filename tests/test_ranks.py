"""Ranks that depend on data: inner ones are inferred, those of outputs are as in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sardonyx
from sardonyx.ops import all_ops
from tests.two_paths import agreed, checked, fast

HEAD = '<ir_version: 9, opset_import: ["" : 21]>\n'

# A number that is a scalar in one branch and a vector in the other steers a loop, as Paddle's
# exporter writes `while`.
WHILE = """
g (float[N] x, int64 last) => (float[N] y, int64 n)
<bool no = {0}, bool yes = {1}, int64 start = {0}> {
  y, done, n = Loop (, yes, x, no, start) <body = b (int64 i, bool c, float[N] v, bool[] d, int64 k)
      => (bool[] goes, float[N] w, bool[] e, int64 m) {
    one = Constant<value_int = 1>()
    m = Add(k, one)
    two = Constant<value_float = 2.0>()
    w = Mul(v, two)
    more = Less(m, last)
    over = Not(more)
    e = If (over) <
      then_branch = p () => (bool t) { t = Constant<value = bool {1}>() },
      else_branch = q () => (bool[] f) {
        zero = Constant<value_ints = [0]>()
        as_int = Cast<to = 7>(d)
        sum = Add(as_int, zero)
        f = Cast<to = 9>(sum)
      }
    >
    goes = Not(e)
  }>
}
"""
# What is carried has another rank at first, and is not read.
UNREAD = """
g (float[N, 3] x, {count}) => (float[] y) <float none = {{0}}, {more}> {{
  y = Loop (trips, , none) <body = b (int64 i, bool c, float[] old)
      => (bool go, float[N, 3] made) {{
    go = Identity(c)
    f = Cast<to = 1>(i)
    made = Add(x, f)
  }}>
}}
"""


def model(text: str) -> bytes:
    return bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())


def check(text: str, **feeds: Any) -> sardonyx.InferenceSession:
    """Runs a model here and in onnxruntime; the results must be the same."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    oracle = onnxruntime.InferenceSession(model(text), options)
    session = sardonyx.InferenceSession(model(text))
    found = agreed(checked(sardonyx.InferenceSession(model(text)), feeds), fast(session, feeds))
    for got, wanted in zip(found, oracle.run(None, feeds), strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    return session


def steps(session: sardonyx.InferenceSession) -> int:
    return session._compiled.program.python_steps


@pytest.mark.parametrize("last", [0, 1, 2, 7])
def test_a_condition_of_either_rank_is_native(last: int) -> None:
    made = check(WHILE, x=np.arange(5, dtype=np.float32), last=np.array(last))
    assert steps(made) == 0


@pytest.mark.parametrize("last", [1, 3])
def test_the_rank_of_an_output_is_kept(last: int) -> None:
    text = WHILE.replace("int64 n)", "int64 n, bool[] done)")
    check(text, x=np.arange(5, dtype=np.float32), last=np.array(last))


@pytest.mark.parametrize("reader", ["Shape", "Size"])
def test_the_rank_of_a_value_with_readers_is_kept(reader: str) -> None:
    text = f"""
    g (bool way) => (int64[] y) <int64 a = {{7}}, int64[1] b = {{8}}> {{
      one = If (way) <
        then_branch = p () => (int64[] t) {{ t = Identity(a) }},
        else_branch = q () => (int64[] f) {{ f = Identity(b) }}
      >
      y = {reader}(one)
    }}
    """
    for way in (True, False):
        check(text, way=np.array(way))


@pytest.mark.parametrize("other", ["int64[1] c = {2}", "int64 c = {2}", "int64[2] c = {2, 3}"])
def test_numbers_of_either_rank_broadcast(other: str) -> None:
    text = f"""
    g (bool way) => (int64[] y) <int64 a = {{7}}, int64[1] b = {{8}}, {other}> {{
      one = If (way) <
        then_branch = p () => (int64[] t) {{ t = Identity(a) }},
        else_branch = q () => (int64[] f) {{ f = Identity(b) }}
      >
      twice = Add(one, one)
      y = Mul(twice, c)
    }}
    """
    found = [steps(check(text, way=np.array(way))) for way in (True, False)]
    assert (found == [0, 0]) == (other != "int64 c = {2}")


def test_the_rank_of_an_unread_loop_output() -> None:
    text = UNREAD.format(count="float[1] z", more="int64 trips = {3}")
    made = check(text, x=np.ones((2, 3), np.float32), z=np.ones(1, np.float32))
    assert steps(made) == 0


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_the_rank_of_an_unread_output_of_a_zero_trip_loop(trips: int) -> None:
    text = UNREAD.format(count="int64 trips", more="int64 unused = {0}")
    check(text, x=np.ones((2, 3), np.float32), trips=np.array(trips))


def test_a_branch_may_give_other_ranks_by_data() -> None:
    text = """
    g (bool way, float[N, M] x) => (float[] y, int64[R] s) <int64[1] one = {1}> {
      y = If (way) <
        then_branch = p () => (float[] t) { t = ReduceSum<keepdims = 0>(x, one) },
        else_branch = q () => (float[] f) { f = Unsqueeze(x, one) }
      >
      s = Shape(y)
    }
    """
    for way in (True, False):
        assert steps(check(text, x=np.ones((2, 3), np.float32), way=np.array(way))) == 0


# What changes a value's rank, or not; all of them take any rank but 0.
CHANGES = {
    "grow": "Unsqueeze({}, zero)",
    "negate": "Neg({})",
    "flat": "Reshape({}, minus)",
    "sum": "ReduceSum<keepdims = 1>({}, zero)",
    "outer": "Add({}, table)",
}


@st.composite
def parted(draw: st.DrawFn) -> str:
    """A chain of nodes in which each If changes the rank in one way or in another, by data."""
    names = st.sampled_from(sorted(CHANGES))
    lines, last = [], "x"
    for i in range(draw(st.integers(1, 3))):
        then, other = draw(names), draw(names)
        lines.append(
            f"y{i} = If (c{i % 2}) <\n"
            f"then_branch = t{i} () => (float[] a{i}) {{ a{i} = {CHANGES[then].format(last)} }},\n"
            f"else_branch = e{i} () => (float[] b{i}) {{ b{i} = {CHANGES[other].format(last)} }} >"
        )
        lines.append(f"z{i} = {CHANGES[draw(names)].format(f'y{i}')}")
        last = draw(st.sampled_from((f"y{i}", f"z{i}")))
    outs = draw(st.lists(st.sampled_from([last, "y0", "z0"]), min_size=1, max_size=3, unique=True))
    lines.append("\n".join(f"o{i} = Mul({v}, two)" for i, v in enumerate(outs)))
    lines.append(f"s = Shape({last})")
    shown = ", ".join(f"float[] o{i}" for i in range(len(outs)))
    return (
        f"g (bool c0, bool c1, float[N, 3] x) => ({shown}, float[] y0, int64[R] s)\n"
        "<int64[1] zero = {0}, int64[1] minus = {-1}, float two = {2},\n"
        "float[2, 1, 1] table = {1, 2}> {\n" + "\n".join(lines) + "\n}"
    )


@settings(max_examples=25)
@given(parted(), st.booleans(), st.booleans())
def test_ranks_that_data_decides_are_native(text: str, first: bool, second: bool) -> None:
    feeds = {"c0": np.array(first), "c1": np.array(second)}
    made = check(text, x=np.arange(6, dtype=np.float32).reshape(2, 3), **feeds)
    # One after another that leaves the rank of an output open may stay in Python.
    assert steps(made) < text.count("= If")


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_ranks_that_data_decides_in_a_loop(trips: int) -> None:
    text = """
    g (float[N, 3] x, int64 trips) => (float[N, 3] y, float[T] sums) <int64[1] zero = {0}> {
      y, sums = Loop (trips, , x) <body = b (int64 i, bool c, float[N, 3] v)
          => (bool go, float[N, 3] w, float t) {
        go = Identity(c)
        one = Constant<value_int = 1>()
        two = Constant<value_int = 2>()
        odd = Mod(i, two)
        is_odd = Equal(odd, one)
        r = If (is_odd) <
          then_branch = p () => (float[] q) { q = Unsqueeze(v, zero) },
          else_branch = e () => (float[] f) { k = Constant<value_ints = [-1]>() f = Reshape(v, k) }
        >
        n = Neg(r)
        shape = Shape(v)
        w = Reshape(n, shape)
        all = ReduceSum<keepdims = 0>(n)
        t = Identity(all)
      }>
    }
    """
    made = check(text, x=np.ones((2, 3), np.float32), trips=np.array(trips))
    assert steps(made) == 0


@pytest.mark.parametrize("way", [True, False])
def test_ranks_that_data_decides_in_a_scan(way: bool) -> None:
    text = """
    g (float[N, 3] x, float[3] z, bool way) => (float[3] s, float[N, 3] y)
    <int64[1] zero = {0}, float two = {2}> {
      s, y = Scan<num_scan_inputs = 1, body = b (float[3] a, float[3] r)
          => (float[3] n, float[3] o) {
        q = If (way) <
          then_branch = p () => (float[] u) { u = Unsqueeze(r, zero) },
          else_branch = e () => (float[] f) { f = Mul(r, two) }
        >
        k = Constant<value_ints = [3]>()
        m = Neg(q)
        o = Reshape(m, k)
        n = Add(a, o)
      }> (z, x)
    }
    """
    x, z = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(3, np.float32)
    assert steps(check(text, x=x, z=z, way=np.array(way))) == 0


@pytest.mark.parametrize("m", [1, 3])
def test_ranks_that_sizes_decide_in_a_loop(m: int) -> None:
    text = """
    g (float[N, M] x, int64 trips) => (float[] y) <int64[1] one = {1}> {
      y = Loop (trips, , x) <body = b (int64 i, bool c, float[N, M] v)
          => (bool go, float[N, M] w) {
        go = Identity(c)
        m = Shape<start = 1>(v)
        thin = Equal(m, one)
        r = If (thin) <
          then_branch = p () => (float[] u) { u = Squeeze(v, one) },
          else_branch = e () => (float[] f) { f = Identity(v) }
        >
        n = Neg(r)
        shape = Shape(v)
        w = Reshape(n, shape)
      }>
    }
    """
    assert steps(check(text, x=np.ones((2, m), np.float32), trips=np.array(3))) == 0


@pytest.mark.parametrize("rank", [9, 10, 11, 12, 40])
@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("options", [None, sardonyx.RunOptions()], ids=["fast", "checked"])
def test_a_branch_of_a_high_rank(
    rank: int, taken: bool, options: sardonyx.RunOptions | None
) -> None:
    """Kernels limit the ranks of operands; values that only pass through an If have numpy's."""
    shape = ", ".join(["1"] * rank)
    text = f"""
    g (float[2, 3] x, bool c) => (float[] y)
    <int64[{rank}] wide = {{{shape}}}, float[1] w = {{5}}> {{
      y = If (c) <then_branch = p () => (float[2, 3] t) {{ t = Neg(x) }},
                  else_branch = q () => (float[] e) {{ e = Reshape(w, wide) }}>
    }}"""
    session = sardonyx.InferenceSession(onnx.parser.parse_model(HEAD + text))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (made,) = session.run(None, {"x": x, "c": np.array(taken)}, options)
    assert made.shape == ((2, 3) if taken else (1,) * rank)
    assert made.reshape(-1)[-1] == (-5 if taken else 5)


@pytest.mark.parametrize("rank", [9, 10, 11])
def test_collected_values_have_one_axis_more(rank: int) -> None:
    dims = ", ".join(["1"] * rank)
    text = f"""
    g (float[{dims}] x) => (float[] y) <int64 n = {{3}}, bool yes = {{1}}> {{
      y = Loop (n, yes) <body = b (int64 i, bool c) => (bool go, float[{dims}] d) {{
        go = Identity(c) d = Neg(x) }}> }}"""
    session = sardonyx.InferenceSession(onnx.parser.parse_model(HEAD + text))
    for options in (None, sardonyx.RunOptions()):
        (made,) = session.run(None, {"x": np.ones((1,) * rank, np.float32)}, options)
        assert made.shape == (3, *(1,) * rank)
        assert (made == -1).all()


def test_results_of_open_ranks_have_types() -> None:
    """A type that no required input has is inferred by the op's rule, for any rank."""
    for op in all_ops():
        told = {slot.type for slot in op.inputs if not slot.optional}
        untold = [s for s in op.outputs if s.type not in told and len(op.types.get(s.type, ())) > 1]
        is_told = op.takes_unranked or op.type_rule is not None
        assert not untold or is_told or op.domain == "sardonyx" or not op.inputs, op

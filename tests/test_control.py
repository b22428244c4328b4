"""Control flow on whole models: what is captured, carried, collected, and known outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import sardonyx
from sardonyx.errors import SardonyxError
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.program.native import NativeSegment
from tests.op_cases import f32, i64, of
from tests.two_paths import both

HEAD = '<ir_version: 9, opset_import: ["" : {opset}]>\n'


def model(text: str, opset: int = 21) -> bytes:
    proto = onnx.parser.parse_model(HEAD.format(opset=opset) + text)
    return bytes(proto.SerializeToString())


def ours(text: str, opset: int = 21, **feeds: Any) -> list[Any]:
    return list(both(lambda: sardonyx.InferenceSession(model(text, opset)), feeds))


def check(text: str, opset: int = 21, **feeds: Any) -> list[Any]:
    """Runs a model here and in onnxruntime; the results must be the same."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    oracle = onnxruntime.InferenceSession(model(text, opset), options)
    got, want = ours(text, opset, **feeds), oracle.run(None, feeds)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        equal(a, b)
    return got


def equal(a: Any, b: Any) -> None:
    if isinstance(b, list):
        assert isinstance(a, list)
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            equal(x, y)
        return
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=1e-6)
    assert a.shape == b.shape


def facts(text: str, opset: int = 21) -> list[str]:
    """Return the inferred facts of a model's outputs."""
    graph = load(model(text, opset)).graph
    infer(graph)
    return [str(v.fact) for v in graph.outputs]


def refused(text: str, match: str, **feeds: Any) -> None:
    with pytest.raises(SardonyxError, match=match):
        ours(text, **feeds)


YES, NO = np.array(True), np.array(False)


def count(n: int) -> Any:
    return np.array(n, np.int64)


PICK = """
g (bool c, float[N, 4] x, float[N, 4] w) => (float[N, 4] y) {
  y = If (c) <
    then_branch = t () => (float[N, 4] a) { a = Add (x, w) },
    else_branch = e () => (float[N, 4] b) { b = Mul (x, w) }
  >
}
"""


@pytest.mark.parametrize("c", [YES, NO])
def test_branches_capture_outer_values(c: Any) -> None:
    check(PICK, c=c, x=f32(3, 4), w=f32(3, 4) + 1)
    assert facts(PICK) == ["f32[N,4]"]


def test_a_condition_may_be_a_vector_of_one() -> None:
    text = PICK.replace("bool c", "bool[1] c")
    check(text, c=np.array([True]), x=f32(3, 4), w=f32(3, 4))


UNEVEN = """
g (bool c, float[N, 4] x) => (float y) {
  v = If (c) <
    then_branch = t () => (float[M, 4] a) { a = Concat <axis = 0> (x, x) },
    else_branch = e () => (float[N, 4] b) { b = Neg (x) }
  >
  w = Add (v, v)
  y = ReduceMax <keepdims = 0> (w)
}
"""


@pytest.mark.parametrize("c", [YES, NO])
def test_branches_of_different_sizes(c: Any) -> None:
    check(UNEVEN, c=c, x=f32(3, 4))


def test_branches_of_different_ranks() -> None:
    text = """
    g (bool c, float[N, 1] x) => (float[] y) {
      one = Constant <value_ints = [1]> ()
      v = If (c) <
        then_branch = t () => (float[N] a) { a = Squeeze (x, one) },
        else_branch = e () => (float[N, 1] b) { b = Identity (x) }
      >
      y = Neg (v)
    }
    """
    for c in (YES, NO):
        check(text, c=c, x=f32(3, 1))
    assert facts(text) == ["f32[?]"]


def test_a_size_found_inside_a_branch_is_known_outside() -> None:
    text = """
    g (bool c, float[N] x) => (int64[K, 1] y) {
      v = If (c) <
        then_branch = t () => (int64[1, A] a) { a = NonZero (x) },
        else_branch = e () => (int64[1, B] b) { n = Neg (x)  r = Relu (n)  b = NonZero (r) }
      >
      w = Transpose (v)
      y = Add (w, w)
    }
    """
    for c in (YES, NO):
        check(text, c=c, x=of([0, -1, 2, 0, 3]))


def test_a_branch_that_does_not_fit_is_not_taken() -> None:
    text = """
    g (float[N, 3] x) => (float[N, 3] y) {
      one = Constant <value_ints = [1]> ()
      shape = Shape <start = 1, end = 2> (x)
      c = Equal (shape, one)
      y = If (c) <
        then_branch = t () => (float[N] a) { a = Squeeze (x, one) },
        else_branch = e () => (float[N, 3] b) { b = Neg (x) }
      >
    }
    """
    equal(ours(text, x=f32(2, 3))[0], -f32(2, 3))
    assert facts(text) == ["f32[N,3]"]


LOOP = """
g (int64 m, bool c, float[N] x, float k) => (float[N] last, float[T, N] all) {
  one = Constant <value_float = 1.0> ()
  last, all = Loop (m, c, x) <body = b (int64 i, bool go, float[N] v)
      => (bool go_on, float[N] w, float[N] s) {
    n = Cast <to = 1> (i)
    small = Less (n, k)
    w = If (small) <
      then_branch = t () => (float[N] a) { a = Add (v, n) },
      else_branch = e () => (float[N] d) { q = Mul (v, k)  d = Sub (q, one) }
    >
    s = Mul (w, x)
    go_on = Identity (go)
  }>
}
"""


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_a_branch_in_a_loop(trips: int) -> None:
    last, rows = check(LOOP, m=count(trips), c=YES, x=f32(3), k=of(2.0))
    assert rows.shape[0] == trips
    assert last.shape == (3,)


def test_a_loop_that_starts_with_false_does_not_run() -> None:
    text = LOOP.replace("[N]", "[3]")
    _, rows = check(text, m=count(5), c=NO, x=f32(3), k=of(2.0))
    assert rows.shape == (0, 3)
    assert rows.dtype == np.float32


def test_a_trip_count_that_is_known_sizes_what_is_collected() -> None:
    text = """
    g (float[N] x) => (float[N] last, float[T, N] all) {
      m = Constant <value_int = 4> ()
      last, all = Loop (m, , x) <body = b (int64 i, bool go, float[N] v)
          => (bool go_on, float[N] w, float[N] s) {
        w = Add (v, x)
        s = Identity (w)
        go_on = Identity (go)
      }>
    }
    """
    assert facts(text) == ["f32[N]", "f32[4,N]"]
    check(text, x=f32(3))


def test_a_loop_ends_by_its_condition() -> None:
    text = """
    g (float x, float most) => (float last, float[T] all) {
      last, all = Loop ( , , x) <body = b (int64 i, bool go, float v)
          => (bool go_on, float w, float s) {
        w = Add (v, v)
        s = Identity (v)
        go_on = Less (w, most)
      }>
    }
    """
    last, rows = check(text, x=of(1.0), most=of(100.0))
    assert last == 128.0
    assert len(rows) == 7


def test_a_carried_value_may_grow() -> None:
    text = """
    g (int64 m, float[N, 2] x) => (float[M, 2] y, float z) {
      y = Loop (m, , x) <body = b (int64 i, bool go, float[A, 2] v) => (bool go_on, float[B, 2] w) {
        w = Concat <axis = 0> (v, x)
        go_on = Identity (go)
      }>
      d = Add (y, y)
      z = ReduceMax <keepdims = 0> (d)
    }
    """
    for trips in (0, 3):
        y, _ = check(text, m=count(trips), x=f32(2, 2))
        assert y.shape == (2 * (trips + 1), 2)
    assert facts(text)[0].endswith(",2]")
    assert "N" not in facts(text)[0]


def test_a_carried_value_may_change_its_rank() -> None:
    text = """
    g (int64 m, float[N] x) => (float[] y) {
      zero = Constant <value_ints = [0]> ()
      y = Loop (m, , x) <body = b (int64 i, bool go, float[] v) => (bool go_on, float[] w) {
        w = Unsqueeze (v, zero)
        go_on = Identity (go)
      }>
    }
    """
    assert facts(text) == ["f32[?]"]
    (y,) = ours(text, m=count(3), x=f32(2))
    equal(y, f32(2).reshape(1, 1, 1, 2))


def test_values_swapped_by_a_loop() -> None:
    text = """
    g (int64 m, float[N] a, float[N] b) => (float[N] c, float[N] d) {
      c, d = Loop (m, , a, b) <body = b (int64 i, bool go, float[N] p, float[N] q)
          => (bool go_on, float[N] r, float[N] s) {
        r = Identity (q)
        s = Identity (p)
        go_on = Identity (go)
      }>
    }
    """
    check(text, m=count(3), a=f32(4), b=f32(4) * 2)
    assert facts(text) == ["f32[N]", "f32[N]"]


def test_a_loop_in_a_loop() -> None:
    text = """
    g (int64 m, int64 n, float[N] x) => (float[N] y, float[A, B, N] all) {
      y, all = Loop (m, , x) <body = b (int64 i, bool go, float[N] v)
          => (bool go_on, float[N] w, float[B, N] rows) {
        w, rows = Loop (n, , v) <body = c (int64 j, bool go2, float[N] p)
            => (bool go_on2, float[N] q, float[N] r) {
          s = Add (i, j)
          t = Cast <to = 1> (s)
          q = Add (p, t)
          r = Mul (q, x)
          go_on2 = Identity (go2)
        }>
        go_on = Identity (go)
      }>
    }
    """
    _, rows = check(text, m=count(3), n=count(2), x=f32(4))
    assert rows.shape == (3, 2, 4)


def test_a_carried_sequence_is_concatenated() -> None:
    text = """
    g (int64 m, float[N, 2] x) => (seq(float[]) parts, float[M, 2] y) {
      start = SequenceEmpty ()
      parts = Loop (m, , start) <body = b (int64 i, bool go, seq(float[]) s)
          => (bool go_on, seq(float[]) t) {
        n = Cast <to = 1> (i)
        v = Mul (x, n)
        t = SequenceInsert (s, v)
        go_on = Identity (go)
      }>
      y = ConcatFromSequence <axis = 0> (parts)
    }
    """
    parts, y = check(text, m=count(3), x=f32(2, 2))
    assert len(parts) == 3
    assert y.shape == (6, 2)
    assert facts(text)[1].endswith(",2]")


SCAN = """
g (float[2] s, float[T, 2] a, float[2, T] b) => (float[2] last, float[2, T] y, float[T, 2] z) {
  last, y, z = Scan (s, a, b) <
    num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
    scan_output_axes = [1, 0], scan_output_directions = [1, 0],
    body = c (float[2] h, float[2] p, float[2] q) => (float[2] h2, float[2] o1, float[2] o2) {
      d = Sub (p, q)
      h2 = Add (h, d)
      o1 = Identity (h2)
      o2 = Mul (p, q)
    }
  >
}
"""


def test_a_scan_of_two_inputs_one_of_them_backwards() -> None:
    check(SCAN, s=f32(2), a=f32(5, 2), b=f32(2, 5))
    assert facts(SCAN) == ["f32[2]", "f32[2,T]", "f32[T,2]"]


def test_a_scan_of_length_zero() -> None:
    last, y, z = ours(SCAN, s=f32(2), a=f32(0, 2), b=f32(2, 0))
    equal(last, f32(2))
    assert (y.shape, z.shape) == ((2, 0), (0, 2))


def test_a_scan_captures_outer_values() -> None:
    text = """
    g (float[N] s, float[T, N] a, float[N] k) => (float[N] last, float[T, N] y) {
      last, y = Scan <num_scan_inputs = 1, body = c (float[N] h, float[N] p)
          => (float[N] h2, float[N] o) {
        q = Mul (p, k)
        h2 = Add (h, q)
        o = Identity (h2)
      }> (s, a)
    }
    """
    check(text, s=f32(3), a=f32(4, 3), k=f32(3))


OLD_SCAN = """
g (%sfloat[B, 2] s, float[B, T, 2] x) => (float[B, 2] last, float[B, T, 2] y) {
  last, y = Scan <num_scan_inputs = 1, directions = [%d], body = c (float[2] h, float[2] p)
      => (float[2] h2, float[2] o) {
    h2 = Add (h, p)
    o = Identity (h2)
  }> (%s, s, x)
}
"""


@pytest.mark.parametrize("direction", [0, 1])
def test_a_scan_of_opset_8_over_batches(direction: int) -> None:
    text = OLD_SCAN % ("", direction, "")
    x, s = f32(3, 4, 2), f32(3, 2)
    last, y = ours(text, 8, s=s, x=x)
    ahead = x[:, ::-1] if direction else x
    sums = s[:, None] + np.cumsum(ahead, 1)
    np.testing.assert_allclose(y, sums, rtol=1e-5)
    np.testing.assert_allclose(last, sums[:, -1], rtol=1e-5)


def test_a_scan_of_opset_8_with_lengths() -> None:
    text = OLD_SCAN % ("int64[B] n, ", 0, "n")
    x, s = f32(2, 4, 2), f32(2, 2)
    last, y = ours(text, 8, s=s, x=x, n=of([4, 2], np.int64))
    sums = s[:, None] + np.cumsum(x, 1)
    np.testing.assert_allclose(last, [sums[0, 3], sums[1, 1]], rtol=1e-5)
    np.testing.assert_allclose(y[0], sums[0], rtol=1e-5)
    np.testing.assert_allclose(y[1, :2], sums[1, :2], rtol=1e-5)
    assert not y[1, 2:].any()


def test_a_map_over_sequences_and_a_tensor() -> None:
    text = """
    g (seq(float[]) a, seq(float[]) b, float k) => (seq(float[]) c, seq(int64[]) d) {
      c, d = SequenceMap (a, b, k) <body = m (float[N] p, float[N] q, float r)
          => (float[N] s, int64[1] t) {
        u = Add (p, q)
        s = Mul (u, r)
        t = Shape (p)
      }>
    }
    """
    a, b = [f32(3), f32(5)], [f32(3), f32(5) * 2]
    c, d = ours(text, a=a, b=b, k=of(2.0))
    equal(c, [(p + q) * np.float32(2) for p, q in zip(a, b, strict=True)])
    equal(d, [of([3], np.int64), of([5], np.int64)])
    assert ours(text, a=[], b=[], k=of(2.0)) == [[], []]
    refused(text, "input 1 has 1 elements, and input 0 has 2", a=a, b=b[:1], k=of(2.0))


def test_branches_must_agree_on_types() -> None:
    text = PICK.replace("float[N, 4] b) { b = Mul (x, w)", "int64[2] b) { b = Shape (x)")
    refused(text, "f32 in one case and i64 in another", c=YES, x=f32(3, 4), w=f32(3, 4))


def test_a_carried_value_must_keep_its_type() -> None:
    text = """
    g (int64 m, float[N] x) => (float[N] y) {
      y = Loop (m, , x) <body = b (int64 i, bool go, float[N] v) => (bool go_on, int64[N] w) {
        w = Cast <to = 7> (v)
        go_on = Identity (go)
      }>
    }
    """
    refused(text, "goes in as f32 and comes back as i64", m=count(1), x=f32(2))


def test_scan_outputs_must_have_equal_shapes() -> None:
    text = """
    g (int64 m, float[N] x) => (float[T, A] all) {
      zero = Constant <value_ints = [0]> ()
      all = Loop (m, ) <body = b (int64 i, bool go) => (bool go_on, float[A] s) {
        end = Unsqueeze (i, zero)
        s = Slice (x, zero, end)
        go_on = Identity (go)
      }>
    }
    """
    refused(text, r"shapes \[0\] and \[1\]", m=count(2), x=f32(4))


def test_scanned_inputs_must_be_equally_long() -> None:
    with pytest.raises(SardonyxError, match="scanned inputs differ in length: 5 and 4"):
        ours(SCAN.replace("float[2, T] b", "float[2, U] b"), s=f32(2), a=f32(5, 2), b=f32(2, 4))


def test_a_body_needs_as_many_inputs_as_it_is_given() -> None:
    text = LOOP.replace("(m, c, x)", "(m, c)").replace("last, all = Loop", "all, last = Loop")
    refused(text, "inputs", m=count(1), c=YES, x=f32(2), k=of(1.0))


def test_a_trip_count_is_one_number() -> None:
    text = LOOP.replace("int64 m", "int64[2] m")
    refused(text, "one number", m=i64(2), c=YES, x=f32(2), k=of(1.0))


def test_a_carried_value_may_begin_as_a_constant() -> None:
    text = """
    g (int32 n) => (int32 k) {
      yes = Constant <value = bool {1}> ()
      zero = Constant <value = int32 {0}> ()
      k, m = Loop (, yes, zero, n) <body = b (int64 i, bool go, int32 a, int32 most) =>
          (bool go_on, int32 more, int32 same) {
        one = Constant <value = int32 {1}> ()
        more = Add (a, one)
        go_on = Less (more, most)
        same = Identity (most)
      }>
    }
    """
    (k,) = ours(text, n=np.array(5, np.int32))
    assert k == 5


@pytest.mark.parametrize("trips", [0, 2])
def test_zero_trips_keep_other_sizes(trips: int) -> None:
    text = """
    g (int64 m, float[N] x) => (float[T, N] all, float[N] y) {
      all = Loop (m, ) <body = b (int64 i, bool go) => (bool go_on, float[N] s) {
        s = Exp (x)
        go_on = Identity (go)
      }>
      one = Exp (x)
      y = Add (one, one)
    }
    """
    found = ours(text, m=count(trips), x=f32(6))
    assert found[1].shape == (6,)


def test_values_between_branches_are_freed() -> None:
    """A chain of branches holds two of the values between them at a time, not all."""
    lines = [
        f"""v{i + 1} = If (c) <
          then_branch = t{i} () => (float[N] a{i}) {{ a{i} = Exp (v{i}) }},
          else_branch = e{i} () => (float[N] b{i}) {{ b{i} = Neg (v{i}) }}>"""
        for i in range(5)
    ]
    text = "g (bool c, float[N] v0) => (float[N] v5) {" + "\n".join(lines) + "}"
    session = sardonyx.InferenceSession(model(text))
    (segment,) = session._compiled.program.segments
    assert isinstance(segment, NativeSegment)
    assert [len(frees) for frees in segment.item_frees] == [1, 1, 1, 1, 2]  # and the condition

"""Sequences with known elements are eliminated, with the results of onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sardonyx
from sardonyx import errors
from sardonyx.compile import Options
from sardonyx.compile.pack_model import Request, pack
from sardonyx.providers import resolve
from tests.test_ranks import check, model, steps

SPLITS = [
    ("s = SplitToSequence<axis = 1>(x)", 4),
    ("s = SplitToSequence<axis = 1, keepdims = 0>(x)", 4),
    ("c = Constant<value_int = 3>()\n s = SplitToSequence<axis = 1>(x, c)", 2),
    ("c = Constant<value_ints = [1, 2, 1]>()\n s = SplitToSequence<axis = -1>(x, c)", 3),
    ("s = SequenceConstruct(x, x, x)", 3),
    ("e = SequenceEmpty()\n a = SequenceInsert(e, x)\n s = SequenceInsert(a, x)", 2),
]
X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(("made", "n"), SPLITS, ids=[m[-45:] for m, _ in SPLITS])
def test_elements_are_read_where_they_are(made: str, n: int) -> None:
    for index in (0, n - 1, -1, -n):
        text = (
            f"g (float[N, 4] x) => (float[] y, int64 k) {{ {made}\n"
            f"i = Constant<value_int = {index}>()\n y = SequenceAt(s, i)\n"
            "k = SequenceLength(s) }"
        )
        assert steps(check(text, x=X)) == 0


JOINS = [
    (made, how)
    for made, _ in SPLITS
    for how in ("axis = 0", "axis = 1", "axis = 1, new_axis = 1", "axis = -1, new_axis = 1")
    if "value_int" not in made or how == "axis = 1"  # parts of several sizes
]


@pytest.mark.parametrize(("made", "how"), JOINS)
def test_elements_are_concatenated(made: str, how: str) -> None:
    if "keepdims = 0" in made:
        how = how.replace("axis = 1", "axis = 0")
    text = (
        f"g (float[N, 4] x) => (float[] y) {{ {made}\n r = Constant<value_int = 0>()\n"
        f"f = SequenceErase(s, r)\n y = ConcatFromSequence<{how}>(f) }}"
    )
    assert steps(check(text, x=X)) == 0


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Inserts and erasures at known places, as long as there are elements."""
    lines, length, last = ["s0 = SequenceConstruct(x, z)"], 2, 0
    for i in range(draw(st.integers(0, 6))):
        at = draw(st.integers(-length, length))
        lines.append(f"p{i} = Constant<value_int = {at}>()")
        if length > 1 and draw(st.booleans()) and at < length:
            lines.append(f"s{i + 1} = SequenceErase(s{i}, p{i})")
            length -= 1
        else:
            value = draw(st.sampled_from("xz"))
            lines.append(f"s{i + 1} = SequenceInsert(s{i}, {value}, p{i})")
            length += 1
        last = i + 1
    return "\n".join((*lines, f"y = ConcatFromSequence<axis = 0>(s{last})"))


@given(programs())
def test_any_order_of_changes(lines: str) -> None:
    text = f"g (float[N, 4] x, float[M, 4] z) => (float[] y) {{ {lines} }}"
    assert steps(check(text, x=X, z=X[:2] + 20)) == 0


def test_slices_of_symbolic_sizes() -> None:
    """Sizes of parts that follow from shapes; the last part has what is left."""
    text = """
    g (float[N, 4] x, float[M, 4] z) => (float[] y, float[] w) <int64[1] zero = {0}> {
      n = Shape<end = 1>(z)
      all = Shape<end = 1>(x)
      rest = Sub(all, n)
      sizes = Concat<axis = 0>(n, rest)
      s = SplitToSequence(x, sizes)
      i = Constant<value_int = 1>()
      y = SequenceAt(s, i)
      w = ConcatFromSequence<axis = 0>(s)
    }
    """
    assert steps(check(text, x=X, z=X[:1])) == 0
    assert steps(check(text, x=X, z=X[:3])) == 0


@pytest.mark.parametrize("how", ["axis = 1", "axis = 0", "axis = -2, keepdims = 0"])
@pytest.mark.parametrize("at", [2, -1, 0])
def test_slices_at_a_computed_position(how: str, at: int) -> None:
    text = f"""
    g (float[N, 4] x, int64 i) => (float[] y, int64 n) {{
      s = SplitToSequence<{how}>(x)
      y = SequenceAt(s, i)
      n = SequenceLength(s)
    }}
    """
    made = check(text, x=X, i=np.array(at))
    assert steps(made) == 0
    with pytest.raises(errors.InvalidArgument, match="outside"):
        made.run(None, {"x": X, "i": np.array(5)})


@pytest.mark.parametrize("n", [1, 3])
def test_a_loop_over_the_rows_of_a_tensor(n: int) -> None:
    """As exporters write `for row in x`."""
    text = """
    g (float[N, 4] x) => (float[4] y) <float[4] zero = {0, 0, 0, 0}> {
      s = SplitToSequence<axis = 0, keepdims = 0>(x)
      n = SequenceLength(s)
      y = Loop (n, , zero) <body = b (int64 i, bool c, float[4] v) => (bool go, float[4] w) {
        go = Identity(c)
        row = SequenceAt(s, i)
        twice = Add(row, row)
        w = Sub(twice, v)
      }>
    }
    """
    assert steps(check(text, x=X[:n])) == 0


def test_unequal_slices_at_a_computed_position() -> None:
    text = """
    g (float[N, 4] x, int64 i) => (float[] y) <int64 three = {3}> {
      s = SplitToSequence<axis = 1>(x, three)
      y = SequenceAt(s, i)
    }
    """
    for at in (0, 1):
        check(text, x=X, i=np.array(at))


def test_optionals_that_are_known() -> None:
    text = """
    g (float[N, 4] x) => (float[] y, bool k) {
      o = Optional(x)
      k = OptionalHasElement(o)
      y = If (k) <
        then_branch = a () => (float[] p) { p = OptionalGetElement(o) },
        else_branch = b () => (float[] q) { q = Neg(x) }
      >
    }
    """
    assert steps(check(text, x=X)) == 0


FILLS = """
g (float[N, 4] x, int64 trips) => (float[] y, float[] u, float[N, 4] w)
<float[4] one = {{1, 1, 1, 1}}> {{
  e = SequenceEmpty()
  w, s = Loop (trips, , x, e) <body = b (int64 i, bool c, float[N, 4] v, seq(float[]) old)
      => (bool go, float[N, 4] v1, seq(float[]) new) {{
    go = Identity(c)
    v1 = Add(v, one)
    {element}
    new = SequenceInsert(old, t)
  }}>
  y = ConcatFromSequence<{how}>(s)
  u = Neg(y)
}}
"""
ELEMENTS = {
    "fixed": "t = Mul(v, v)",
    "varied": "k = Constant<value_ints = [0]>()\n r = Constant<value_ints = [1]>()\n"
    "i1 = Reshape(i, r)\n n = Add(i1, r)\n t = Slice(x, k, n, r)",
}


@pytest.mark.parametrize(
    ("element", "how"),
    [
        ("fixed", "axis = 0"),
        ("fixed", "axis = 1"),
        ("fixed", "axis = -1"),
        ("fixed", "axis = 0, new_axis = 1"),
        ("fixed", "axis = 1, new_axis = 1"),
        ("fixed", "axis = -1, new_axis = 1"),
        ("varied", "axis = 1"),
        ("varied", "axis = -1"),
    ],
)
@pytest.mark.parametrize("trips", [1, 2, 3])
def test_sequences_filled_by_a_loop_become_scan_outputs(element: str, how: str, trips: int) -> None:
    text = FILLS.format(element=ELEMENTS[element], how=how)
    assert steps(check(text, x=X, trips=np.array(trips))) == 0


def test_a_collecting_loop_is_saved_in_a_pack(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(FILLS.format(element=ELEMENTS["varied"], how="axis = 1")))
    wanted = sardonyx.InferenceSession(str(path)).run(None, {"x": X, "trips": np.array(3)})
    _, providers = resolve(None, None)
    pack(str(path), Options(providers), Request(f"{path}.pack"))
    packed = sardonyx.InferenceSession(str(path))
    assert steps(packed) == 0
    assert "pack" in packed._compiled.stages.seconds()
    for a, b in zip(packed.run(None, {"x": X, "trips": np.array(3)}), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_concatenating_an_empty_sequence_is_an_error() -> None:
    made = sardonyx.InferenceSession(model(FILLS.format(element=ELEMENTS["fixed"], how="axis = 0")))
    with pytest.raises(errors.InvalidArgument, match="ran no iterations"):
        made.run(None, {"x": X, "trips": np.array(0)})


def test_elements_that_do_not_fit_are_refused() -> None:
    text = FILLS.format(element=ELEMENTS["varied"], how="axis = 0")
    made = sardonyx.InferenceSession(model(text))
    with pytest.raises(errors.InvalidArgument, match=r"\[3, 1\] and \[3, 2\]"):
        made.run(None, {"x": X, "trips": np.array(3)})


FILLED = """g (float[N, 4] x, int64 trips) => (float[] y)
<int64 zero = {0}> {
  none = SequenceEmpty()
  s = Loop (trips, , none) <body = step (int64 i, bool on, seq(float[]) f)
    => (bool next, seq(float[]) g) {
      next = Identity(on)
      k = Cast<to = 1>(i)
      part = Add(x, k)
      g = SequenceInsert(f, part)
    } >
"""
READERS = {
    "another sequence": """
  t = SequenceInsert(s, x, zero)
  y = ConcatFromSequence<axis = 0>(t)
}""",
    "a branch": """
  some = Greater(trips, zero)
  y = If (some) <
    then_branch = a () => (float[A, B] p) { p = ConcatFromSequence<axis = 0>(s) },
    else_branch = b () => (float[C, D] q) { q = Neg(x) }
  >
}""",
}


@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("reader", READERS)
def test_sequences_with_other_readers_stay(reader: str, trips: int) -> None:
    """A branch that joins may guard against a sequence without elements."""
    check(FILLED + READERS[reader], x=X, trips=np.array(trips))

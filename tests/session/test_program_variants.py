"""Programs for branches chosen by sizes: one variant per branch, and a general one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sardonyx
from sardonyx import errors
from sardonyx.base.locks import Lock
from sardonyx.compile import Options
from sardonyx.compile.pack_model import Request, pack
from sardonyx.providers import resolve
from tests.session.concurrently import run_concurrently

HEAD = '<ir_version: 9, opset_import: ["" : 21]>\n'
# As exporters write `x.squeeze(1)` where the size is open, twice, with something in between.
SQUEEZES = """
g (float[N, M] x, float[K] z) => (float[] y, float[] t, int64[R] s)
<int64[1] one = {1}, int64[1] zero = {0}, float two = {2}> {
  shape = Shape(x)
  m = Gather<axis = 0>(shape, one)
  is_one = Equal(m, one)
  y = If (is_one) <
    then_branch = a () => (float[] p) { p = Squeeze(x, one) },
    else_branch = b () => (float[] q) { q = Identity(x) }
  >
  s = Shape(y)
  rank = Size(s)
  flat = Equal(rank, one)
  folded = Not(flat)
  t = If (folded) <
    then_branch = c () => (float[] u) { u = ReduceSum<keepdims = 0>(y, zero) },
    else_branch = d () => (float[] v) { v = Mul(y, two) }
  >
}
"""
# The branch that runs take depends on data, the ranks inside on sizes.
NESTED = """
g (bool way, float[N, M] x) => (float[P] y)
<int64[1] one = {1}, float two = {2}> {
  y = If (way) <
    then_branch = a () => (float[A] p) {
      shape = Shape(x)
      m = Gather<axis = 0>(shape, one)
      small = Less(m, one)
      r = If (small) <
        then_branch = c () => (float[] u) { u = ReduceSum<keepdims = 0>(x) },
        else_branch = d () => (float[] v) { v = Mul(x, two) }
      >
      minus = Constant<value_ints = [-1]>()
      p = Reshape(r, minus)
    },
    else_branch = b () => (float[B] q) {
      flat = Constant<value_ints = [-1]>()
      q = Reshape(x, flat)
    }
  >
}
"""


def model(text: str) -> bytes:
    return bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())


def oracle(text: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model(text), options)


def ours(text: str) -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(model(text))


SESSIONS = {text: (ours(text), oracle(text)) for text in (SQUEEZES, NESTED)}


def same(got: list[Any], wanted: list[Any]) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-6)


def feed(text: str, n: int, m: int, k: int) -> dict[str, Any]:
    x = np.arange(n * m, dtype=np.float32).reshape(n, m)
    if text is NESTED:
        return {"x": x, "way": np.array(k % 2 == 0)}
    return {"x": x, "z": np.zeros(k, np.float32)}


@pytest.mark.parametrize("text", [SQUEEZES, NESTED], ids=["squeezes", "nested"])
@given(n=st.integers(1, 4), m=st.integers(0, 3), k=st.integers(0, 1))
def test_all_variants_equal_onnxruntime(text: str, n: int, m: int, k: int) -> None:
    made, wanted = SESSIONS[text]
    feeds = feed(text, n, m, k)
    same(made.run(None, feeds), wanted.run(None, feeds))
    assert made._compiled.program.python_steps == 0


def test_each_variant_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ours(SQUEEZES)
    for m in (1, 2):
        made.run(None, feed(SQUEEZES, 2, m, 1))
    monkeypatch.setattr(made, "_compile_uncached", None)
    for m in (1, 3, 1, 4):
        same(made.run(None, feed(SQUEEZES, 3, m, 1)), oracle_of(3, m))


def oracle_of(n: int, m: int) -> list[Any]:
    return list(SESSIONS[SQUEEZES][1].run(None, feed(SQUEEZES, n, m, 1)))


def test_threads_run_both_variants_at_once() -> None:
    made = ours(SQUEEZES)

    def runs(m: int) -> Callable[[int], None]:
        feeds, expected = feed(SQUEEZES, 2, m, 1), oracle_of(2, m)
        return lambda _: same(made.run(None, feeds), expected)

    run_concurrently(*map(runs, (1, 2, 1, 3)), times=20)


def test_a_default_fed_while_another_variant_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread waits to compile another way, and another one feeds what was a constant."""
    text = SQUEEZES.replace("float[K] z)", "float[K] z, float two)")
    made, unhurried = ours(text), Lock()

    class Waiting:
        def __enter__(self) -> None:
            monkeypatch.setattr(made, "_lock", unhurried)
            made._unfix_defaults()
            unhurried.__enter__()

        def __exit__(self, *_: object) -> None:
            unhurried.__exit__()

    monkeypatch.setattr(made, "_lock", Waiting())
    for m in (1, 2):  # one of them is not the way that was compiled first
        same(made.run(None, feed(text, 2, m, 1)), oracle_of(2, m))
    assert made._lock is unhurried
    feeds = {**feed(text, 2, 1, 1), "two": np.array(5, np.float32)}
    np.testing.assert_array_equal(made.run(["t"], feeds)[0], feeds["x"][:, 0] * 5)


def test_too_many_variants_share_one_program() -> None:
    ways = 5  # of which each may go two
    parts = "".join(
        f"n{i} = Constant<value_ints = [{i}]>()\n c{i} = Equal(m, n{i})\n"
        f"y{i} = If (c{i}) < then_branch = a{i} () => (float[] p{i}) {{ p{i} = ReduceSum(x) }},\n"
        f" else_branch = b{i} () => (float[] q{i}) {{ q{i} = ReduceSum<keepdims = 0>(x) }} >\n"
        for i in range(2, 2 + 2 * ways)
    )
    outputs = ", ".join(f"float[] y{i}" for i in range(2, 2 + 2 * ways))
    text = (
        f"g (float[N, M] x) => ({outputs}) <int64[1] one = {{1}}> {{ s = Shape(x)\n"
        f"m = Gather<axis = 0>(s, one)\n {parts} }}"
    )
    made, wanted = ours(text), oracle(text)
    for m in (*range(14), *range(14)):
        x = {"x": np.ones((2, m), np.float32)}
        same(made.run(None, x), wanted.run(None, x))
    assert made._compiled.program.python_steps == 0  # runs begin with one of the fast ones


def test_a_branch_never_taken_may_be_wrong() -> None:
    """The branch for other data does not take these sizes; the one that is taken does."""
    text = """
    g (bool way, float[N, M] x, float[3] z) => (float[] y) <int64[1] one = {1}> {
      shape = Shape(x)
      m = Gather<axis = 0>(shape, one)
      is_one = Equal(m, one)
      w = If (is_one) <
        then_branch = a () => (float[] p) { p = Squeeze(x, one) },
        else_branch = b () => (float[] q) { q = Unsqueeze(x, one) }
      >
      y = If (way) <
        then_branch = c () => (float[] u) { u = Gemm(w, w) },
        else_branch = d () => (float[] v) { v = Identity(w) }
      >
    }
    """
    made = ours(text)
    x, z = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    assert made.run(None, {"x": x, "z": z, "way": np.array(False)})[0].shape == (2, 1, 3)
    with pytest.raises(errors.SardonyxError, match="rank"):
        made.run(None, {"x": x, "z": z, "way": np.array(True)})


def test_a_saved_model_serves_all_variants(tmp_path: Path) -> None:
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    sardonyx.InferenceSession(model(SQUEEZES), options)
    saved = onnxruntime.InferenceSession(str(tmp_path / "saved.onnx"))
    for m in (1, 2):
        same(saved.run(None, feed(SQUEEZES, 2, m, 1)), oracle_of(2, m))


def test_a_pack_is_for_one_variant(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(SQUEEZES))
    _, providers = resolve(None, None)
    pack(str(path), Options(providers), Request(f"{path}.pack"))
    made = sardonyx.InferenceSession(str(path))
    for m in (1, 2, 1):
        same(made.run(None, feed(SQUEEZES, 2, m, 1)), oracle_of(2, m))


def test_equal_names_that_cannot_be_equal() -> None:
    """Equal names of different sizes are a comment, as in onnxruntime; feeds are still checked."""
    text = """
    g (float[N] x, float[N, 2] w) => (float[P] y) <float[1] one = {1}> {
      longer = Concat<axis = 0>(x, one)
      y = MatMul(longer, w)
    }
    """
    data = onnx.parser.parse_model(HEAD + text).SerializeToString()
    feeds = {"x": np.float32([2, 3]), "w": np.float32([[1, 0], [0, 1], [1, 1]])}
    assert onnxruntime.InferenceSession(data).run(None, feeds)[0].tolist() == [3, 4]
    session = sardonyx.InferenceSession(data)
    for options in (None, sardonyx.RunOptions()):
        assert session.run(None, feeds, options)[0].tolist() == [3, 4]
        with pytest.raises(errors.SardonyxError, match="3"):
            session.run(None, {**feeds, "x": np.float32([2, 3, 4])}, options)


def test_contradicting_fixed_sizes_are_an_error() -> None:
    text = """
    g (float[N] x, float[2, 2] w) => (float[P] y) <float[3] three = {1, 2, 3}> {
      y = MatMul(three, w)
    }
    """
    with pytest.raises(errors.ShapeError, match="3"):
        sardonyx.InferenceSession(onnx.parser.parse_model(HEAD + text))

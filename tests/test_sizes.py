"""Symbolic elements pass arithmetic, casts and reductions, and end where a type would wrap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dim import Shape, Size, evaluate, is_at_least, is_equal, maximum, symbol
from sardonyx.graph.dtype import BOOL, F32, I8, I32, I64, U64, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.graph.guard import Scope
from sardonyx.ops.builder import Builder

N = symbol("n")
M = symbol("m")


def sizes(*elements: Size, dtype: DType = I64) -> Value:
    return Value("", Fact(dtype, (len(elements),), None, tuple(elements)))


def held(numbers: Any, dtype: Any = np.int64) -> Value:
    return constant(ArrayConst(np.array(numbers, dtype)))


def made(name: str, *inputs: Value | None, **attrs: Any) -> Shape | None:
    node = Builder(Graph(), Scope()).node(name, *inputs, **attrs)
    return node.outputs[0].tensor.sym


@pytest.mark.parametrize(
    ("name", "right", "result"),
    [
        ("Add", 2, (N + 2, 5)),
        ("Sub", 1, (N - 1, 2)),
        ("Mul", M, (N * M, M * 3)),
        ("Div", 2, (N // 2, 1)),
        ("Mod", 2, (N % 2, 1)),
        ("Max", 2, (maximum(N, 2), 3)),
        ("Less", 0, (0, 0)),
        ("GreaterOrEqual", 0, (1, 1)),
        ("LessOrEqual", 5, (is_at_least(5, N), 1)),
        ("Equal", -1, (0, 0)),
    ],
)
def test_arithmetic(name: str, right: Size, result: Shape | None) -> None:
    assert made(name, sizes(N, 3), sizes(right)) == result


FORMULAS = st.sampled_from([0, 1, 3, -1, N, M, N + 1, N - 2, N * M, N // 2, 3 - N, N - M])
COMPARED = {
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
}


@given(st.lists(st.tuples(FORMULAS, FORMULAS), min_size=1, max_size=3), st.data())
def test_comparisons_of_symbolic_sizes(pairs: list[tuple[Size, Size]], data: st.DataObject) -> None:
    """Comparisons, logic on them and what they choose, as numbers of n and m say."""
    dims = {"n": data.draw(st.integers(0, 4)), "m": data.draw(st.integers(0, 4))}
    names = data.draw(st.tuples(*[st.sampled_from(sorted(COMPARED))] * 2))
    sides = [Value("", Fact(I64, (len(pairs),), None, side)) for side in zip(*pairs, strict=True)]
    b = Builder(Graph(), Scope())
    first, second = (b.node(name, *sides).outputs[0] for name in names)
    both, either = b.And(first, second), b.Or(first, b.Not(second))
    chosen, truth = b.Where(first, *sides), b.Cast(sides[0], to=BOOL.onnx)
    left, right = (np.array([evaluate(s, dims) for s in v.tensor.sym or ()]) for v in sides)
    x, y = (COMPARED[name](left, right) for name in names)
    for value, wanted in (
        (both, x & y),
        (either, x | ~y),
        (chosen, np.where(x, left, right)),
        (truth, left != 0),
    ):
        assert value.tensor.sym is not None
        assert [evaluate(s, dims) for s in value.tensor.sym] == list(wanted)


def test_long_masks_are_not_symbolic() -> None:
    assert made("Less", sizes(*range(9)), sizes(N)) is None
    assert made("Less", sizes(*range(9)), sizes(9)) == (1,) * 9


def test_division_by_zero_stays_open() -> None:
    assert made("Div", sizes(3), sizes(0)) is None


def test_negative_remainders_of_names_stay_open() -> None:
    assert made("Mod", sizes(N - 3), sizes(2)) is None
    assert made("Mod", sizes(-3), sizes(2)) == (1,)
    assert made("Mod", sizes(-3), sizes(2), fmod=1) == (-1,)


def test_clip_and_neg() -> None:
    assert made("Clip", sizes(N, 300), held(1), held(256)) is not None
    assert made("Clip", sizes(0, 300), held(1), held(256)) == (1, 256)
    assert made("Neg", sizes(N)) == (N * -1,)


def test_numbers_wrap_and_symbols_that_may_wrap_are_dropped() -> None:
    assert made("Add", held([100], np.int8), held([27], np.int8)) == (127,)
    assert made("Add", held([100], np.int8), held([28], np.int8)) == (-128,)
    assert made("Sub", held([1], np.uint64), held([2], np.uint64)) == (2**64 - 1,)
    assert made("Mul", held([2**62]), held([4])) == (0,)
    assert made("Sub", sizes(N, dtype=U64), sizes(1, dtype=U64)) is None


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "result"),
    [
        ("Cast", [held([0.0, 2.9, -2.9], np.float32)], {"to": 7}, (0, 2, -2)),
        ("CastLike", [held([3.0], np.float32), held([0])], {}, (3,)),
        ("Equal", [held([1.0], np.float32), held([1.5], np.float32)], {}, (0,)),
        ("Abs", [sizes(-3, 4)], {}, (3, 4)),
        ("Sign", [sizes(-3, 0)], {}, (-1, 0)),
        ("Pow", [sizes(-3), held([2])], {}, (9,)),
        ("CumSum", [sizes(1, 2, 3), held(0)], {}, (1, 3, 6)),
        ("NonZero", [sizes(0, 5, 5)], {}, (1, 2)),
    ],
)
def test_constant_elements_are_folded(
    name: str, inputs: list[Value], attrs: dict[str, Any], result: Shape
) -> None:
    """Also what an op without a rule on sizes makes of them, and floats on the way."""
    assert made(name, *inputs, **attrs) == result


def test_float_arithmetic_between_integer_sizes() -> None:
    b = Builder(Graph(), Scope())
    half = b.Floor(b.Mul(b.Cast(sizes(7), to=F32.onnx), 0.5))
    assert b.Cast(half, to=I64.onnx).tensor.sym == (3,)
    assert b.Cast(b.Mul(b.Cast(sizes(N), to=F32.onnx), 0.5), to=I64.onnx).tensor.sym is None


def test_elements_of_a_tensor_of_open_size_stay_open() -> None:
    b = Builder(Graph(), Scope())
    empty = b.ConstantOfShape(sizes(0, N), value=ArrayConst(np.array([1])))
    assert str(empty.fact) == "i64[0,n]"


def test_large_values_are_not_folded_during_inference() -> None:
    b = Builder(Graph(), Scope())
    many = b.ConstantOfShape(held([2**33]))
    assert b.Cast(b.ReduceMax(many, keepdims=0), to=I64.onnx).tensor.sym is None


@pytest.mark.parametrize(
    ("to", "result"),
    [
        (I32, (N, 300, -1)),
        (I64, (N, 300, -1)),
        (I8, None),
        (BOOL, (1 - is_equal(N, 0), 1, 1)),
        (F32, None),
    ],
)
def test_casts_keep_sizes(to: DType, result: Shape | None) -> None:
    assert made("Cast", sizes(N, 300, -1), to=to.onnx) == result
    assert made("CastLike", sizes(N, 300, -1), held([0], to.np)) == result


def test_casts_of_numbers_wrap() -> None:
    assert made("Cast", held([200, -300]), to=I8.onnx) == (-56, -44)
    assert made("Cast", held([-1]), to=U64.onnx) == (2**64 - 1,)
    assert made("Cast", held([0, 7]), to=BOOL.onnx) == (0, 1)


def test_reductions() -> None:
    assert made("ReduceProd", sizes(N, 3, M), None, keepdims=0) == (N * M * 3,)
    assert made("ReduceSum", sizes(N, 3, N), held([0])) == (N * 2 + 3,)
    assert made("ReduceMax", sizes(N, N + 1)) == (N + 1,)
    assert made("ReduceProd", sizes(), keepdims=0) == (1,)
    assert made("ReduceMin", sizes(), keepdims=0) == (2**63 - 1,)


def test_a_reduction_over_unknown_axes_keeps_the_rank() -> None:
    x = Value("", Fact(F32, (N, 3, M)))
    axes = Value("", Fact(I64, (2,)))
    b = Builder(Graph(), Scope())
    assert b.ReduceSum(x, axes).tensor.rank == 3
    assert b.ReduceSum(x, axes, keepdims=0).tensor.rank == 1
    assert b.ReduceSum(x, Value("", Fact(I64, (N,)))).tensor.shape is None
    assert b.ReduceSum(Value("", Fact(F32, None)), keepdims=0).tensor.shape == ()


def test_einsum_of_symbolic_sizes() -> None:
    scope = Scope()
    b = Builder(Graph(), scope)
    q, k = (Value("", Fact(F32, (N, 8, length, 64))) for length in (M, M + 1))
    assert b.Einsum(q, k, equation=b"bhid,bhjd->bhij").tensor.shape == (N, 8, M, M + 1)
    assert scope.guards == []


def test_matmul_guards_what_it_cannot_prove() -> None:
    scope = Scope()
    y = Builder(Graph(), scope).MatMul(
        Value("", Fact(F32, (N, 4, M))), Value("", Fact(F32, (1, 8, 5)))
    )
    assert y.tensor.shape == (N, 4, 5)
    assert [(g.kind, g.left, g.right) for g in scope.guards] == [("equal", M, 8)]

"""Symbolic dims: laws are checked by evaluating both sides under random bindings."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sardonyx.errors import InternalError, ShapeError
from sardonyx.graph.dim import (
    Dim,
    Size,
    broadcast,
    evaluate,
    floor_div,
    least,
    maximum,
    minimum,
    modulo,
    product,
    same,
    substitute,
    symbol,
    symbols,
)
from sardonyx.load.graph_text import parse_size

A, B, C = symbol("a"), symbol("b"), symbol("c")

Binding = dict[str, int]
bindings = st.fixed_dictionaries({n: st.integers(0, 12) for n in "abc"})


def _sizes(children: st.SearchStrategy[Size]) -> st.SearchStrategy[Size]:
    positive = st.integers(1, 7)
    return st.one_of(
        st.builds(operator.add, children, children),
        st.builds(operator.sub, children, children),
        st.builds(operator.mul, children, children),
        st.builds(floor_div, children, positive),
        st.builds(modulo, children, positive),
        st.builds(maximum, children, children),
        st.builds(minimum, children, children),
    )


leaves = st.one_of(st.integers(-6, 6), st.sampled_from((A, B, C)))
sizes = st.recursive(leaves, _sizes, max_leaves=6)


@pytest.mark.parametrize(
    ("symbolic", "number"),
    [
        (operator.add, operator.add),
        (operator.sub, operator.sub),
        (operator.mul, operator.mul),
        (maximum, max),
        (minimum, min),
    ],
)
@given(x=sizes, y=sizes, values=bindings)
def test_arithmetic_equals_that_of_integers(
    symbolic: Callable[[Size, Size], Size],
    number: Callable[[int, int], int],
    x: Size,
    y: Size,
    values: Binding,
) -> None:
    expected = number(evaluate(x, values), evaluate(y, values))
    assert evaluate(symbolic(x, y), values) == expected


@pytest.mark.parametrize("symbolic", [floor_div, modulo])
@given(x=sizes, y=sizes, values=bindings)
def test_division_rounds_down(
    symbolic: Callable[[Size, Size], Size], x: Size, y: Size, values: Binding
) -> None:
    number = operator.floordiv if symbolic is floor_div else operator.mod
    assume(y != 0 and evaluate(y, values) != 0)
    assert evaluate(symbolic(x, y), values) == number(evaluate(x, values), evaluate(y, values))


@given(x=sizes, y=sizes, z=sizes)
def test_equal_polynomials_have_one_form(x: Size, y: Size, z: Size) -> None:
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) * z == x * z + y * z
    assert x - x == 0
    assert hash(x + y) == hash(y + x)
    assert str(x + y) == str(y + x)


@given(x=sizes, values=bindings)
def test_lower_bounds_are_never_above(x: Size, values: Binding) -> None:
    assert least(x) <= evaluate(x, values)


@given(x=sizes, y=sizes, values=bindings)
def test_same_is_right_where_it_answers(x: Size, y: Size, values: Binding) -> None:
    answer = same(x, y)
    if answer is not None:
        assert answer == (evaluate(x, values) == evaluate(y, values))


@given(x=sizes, inner=sizes, values=bindings)
def test_substitution_is_evaluation_in_two_steps(x: Size, inner: Size, values: Binding) -> None:
    there = {**values, "a": evaluate(inner, values)}
    assert evaluate(substitute(x, {"a": inner}), values) == evaluate(x, there)


@given(x=sizes)
def test_text_reads_back(x: Size) -> None:
    assert parse_size(str(x)) == x


@given(x=st.integers(0, 9), y=st.integers(0, 9))
def test_broadcast_of_sizes_that_fit(x: int, y: int) -> None:
    if x == y or 1 in (x, y):
        expected = y if x == 1 else x
        for left, right in ((A, B), (x, B), (A, y)):
            assert evaluate(broadcast(left, right), {"a": x, "b": y}) == expected


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (A * 2 + 1, "2*a + 1"),
        (A - A, "0"),
        (A * B - B * A, "0"),
        (-A + 3, "-a + 3"),
        ((A + 1) * (A - 1), "a*a - 1"),
        ((A * B * 4) // (B * 2), "2*a"),
        ((A * A - 1) // (A + 1), "a - 1"),
        ((A * 2 + 1) // 2, "a"),
        ((A + 3) // 2, "div(a + 1, 2) + 1"),
        (A // B, "div(a, b)"),
        ((A * 6) % 3, "0"),
        (A % 3, "mod(a, 3)"),
        (7 // A, "div(7, a)"),
        (7 % A, "mod(7, a)"),
        (5 - A, "-a + 5"),
        (maximum(A, A + 1), "a + 1"),
        (maximum(A, 0), "a"),
        (maximum(A, B), "max(a, b)"),
        (minimum(A + 2, A), "a"),
        (minimum(A, 4), "min(a, 4)"),
        (broadcast(A, 1), "a"),
        (broadcast(A, 4), "4"),
        (broadcast(B, A), "broadcast(a, b)"),
        (broadcast(A, B), "broadcast(a, b)"),
        (product((A, 3, B, 2)), "6*a*b"),
        (product(()), "1"),
        (symbol("batch size"), "'batch size'"),
    ],
)
def test_normal_form(size: Size, text: str) -> None:
    assert str(size) == text
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("size", "bound"),
    [
        (5, 5),
        (A, 0),
        (A * B + 3, 3),
        (-A, float("-inf")),
        (A - B, float("-inf")),
        (A % 3, 0),
        (A // 2, 0),
        (maximum(A, B + 4), 4),
        (minimum(A + 2, B + 4), 2),
        ((A + 9) // (B + 1), 0),
        (A + (2**60 + 129), 2**60 + 129),
    ],
)
def test_least(size: Size, bound: float) -> None:
    assert least(size) == bound


@pytest.mark.parametrize(
    ("x", "y", "answer"),
    [
        (3, 3, True),
        (3, 4, False),
        (A, A, True),
        (A, B, None),
        (A + 1, A, False),
        (A + 1, 0, False),
        (A, 0, None),
        (A + B, B + A, True),
    ],
)
def test_same(x: Size, y: Size, answer: bool | None) -> None:
    assert same(x, y) is answer


def test_symbols_look_into_calls() -> None:
    assert symbols(maximum(A // B, C)) == {"a", "b", "c"}
    assert symbols(7) == frozenset()


def test_a_size_without_values_says_which_are_missing() -> None:
    with pytest.raises(InternalError, match=r"a \+ b has no value: \['b'\]"):
        evaluate(A + B, {"a": 1})


@pytest.mark.parametrize("divide", [floor_div, modulo])
@pytest.mark.parametrize("size", [A, 6])
def test_division_by_zero_is_an_error_of_ours(
    divide: Callable[[Size, Size], Size], size: Size
) -> None:
    with pytest.raises(ShapeError, match="by 0"):
        divide(size, 0)
    with pytest.raises(ShapeError, match="by 0"):
        evaluate(divide(size, B), {"a": 3, "b": 0})


def test_sizes_that_grow_without_bound_are_refused() -> None:
    def grow(step: Callable[[Size], Size]) -> None:
        size: Size = A + B
        for _ in range(64):
            size = step(size)

    for step in (
        lambda s: s * s,
        lambda s: floor_div(s, s + 1),
        lambda s: maximum(s, s * 2 - 5),
        lambda s: s * (s + A),
    ):
        with pytest.raises(ShapeError, match="too long"):
            grow(step)


def test_numbers_stay_numbers() -> None:
    assert isinstance(A * 0, int)
    assert isinstance((A + 1) - A, int)
    assert isinstance(A + 0, Dim)

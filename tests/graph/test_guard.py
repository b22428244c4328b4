"""Guards: proven conditions leave none, disproved ones raise, numbers decide the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import Size, evaluate, symbol, symbols
from sardonyx.graph.guard import AssumptionFailed, Scope

A, B = symbol("A"), symbol("B")

TRUE: dict[str, Callable[[int, int], bool]] = {
    "equal": lambda a, b: a == b,
    "equal_or_one": lambda a, b: a in (1, b),
    "divides": lambda a, b: a != 0 and b % a == 0,
    "at_least": lambda a, b: a >= b,
    "broadcast": lambda a, b: a == b or 1 in (a, b),
}

sizes = st.sampled_from((0, 1, 2, 3, 6, A, B, A + 1, A * 2, A + B, B // 2, A * B))
bindings = st.fixed_dictionaries({"A": st.integers(0, 7), "B": st.integers(0, 7)})


def ask(scope: Scope, kind: str, a: Size, b: Size) -> Any:
    return getattr(scope, kind)(a, b, "sizes differ")


@pytest.mark.parametrize("kind", TRUE)
@given(a=sizes, b=sizes, values=bindings)
def test_guards_decide_as_the_numbers_do(
    kind: str, a: Size, b: Size, values: dict[str, int]
) -> None:
    holds = TRUE[kind](evaluate(a, values), evaluate(b, values))
    scope = Scope(assumes=False)
    try:
        ask(scope, kind, a, b)
    except ShapeError:
        assert not holds
        return
    # What divides by a polynomial is exact where that polynomial is not zero.
    assume(kind != "divides" or evaluate(a, values) != 0)
    assert all(g.holds(values) for g in scope.guards) == holds


@given(a=sizes, b=sizes, values=bindings)
def test_broadcast_gives_the_size_where_it_holds(a: Size, b: Size, values: dict[str, int]) -> None:
    left, right = evaluate(a, values), evaluate(b, values)
    assume(TRUE["broadcast"](left, right))
    expected = right if left == 1 else left
    assert evaluate(Scope(assumes=False).broadcast(a, b), values) == expected
    scope = Scope()
    scope.entry |= symbols(a) | symbols(b)
    size = scope.broadcast(a, b)
    if all(g.holds(values) for g in scope.guards):
        assert evaluate(size, values) == expected


@pytest.mark.parametrize(
    ("kind", "a", "b", "text"),
    [
        ("equal", 3, 4, "sizes differ: 3 and 4"),
        ("equal", A + 1, A, r"sizes differ: A \+ 1 and A"),
        ("equal_or_one", 3, 4, "3 is neither 1 nor 4"),
        ("equal_or_one", A + 2, 0, r"A \+ 2 is neither 1 nor 0"),
        ("divides", 2, 5, "2 does not divide 5"),
        ("divides", 0, 5, "0 does not divide 5"),
        ("at_least", 1, 2, "1 is less than 2"),
        ("at_least", A, A + 1, r"A is less than A \+ 1"),
        ("broadcast", 2, 3, "sizes differ: 2 and 3"),
        ("broadcast", 3, A + 4, r"A \+ 4"),
    ],
)
def test_what_cannot_hold_is_refused_at_once(kind: str, a: Size, b: Size, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        ask(Scope(), kind, a, b)


@pytest.mark.parametrize(
    ("kind", "a", "b"),
    [
        ("equal", A, A),
        ("equal", A * 2, A + A),
        ("equal_or_one", 1, A),
        ("equal_or_one", A, A),
        ("divides", 4, A * 8),
        ("divides", 1, A),
        ("divides", A, A * B),
        ("at_least", A + 2, 2),
        ("at_least", A, 0),
        ("broadcast", A, 1),
        ("broadcast", A, A),
    ],
)
def test_what_must_hold_leaves_no_guard(kind: str, a: Size, b: Size) -> None:
    scope = Scope()
    ask(scope, kind, a, b)
    assert not scope.guards


@pytest.mark.parametrize(
    ("kind", "a", "b", "text"),
    [
        ("equal", A, 4, r"sizes differ: 3 and 4"),
        ("equal_or_one", A, 4, "3 is neither 1 nor 4"),
        ("divides", A, 4, "3 does not divide 4"),
        ("at_least", A, 4, "3 is less than 4"),
        ("broadcast", A, B, "sizes differ: 3 and 2"),
    ],
)
def test_a_failing_guard_reports_the_numbers(kind: str, a: Size, b: Size, text: str) -> None:
    scope = Scope()
    ask(scope, kind, a, b)
    (guard,) = scope.guards
    with pytest.raises(InvalidArgument, match=text) as caught:
        guard.check({"A": 3, "B": 2})
    assert "A=3" in str(caught.value)
    guard.check({"A": 4, "B": 4})


def test_an_assumption_that_fails_is_no_error_where_one_side_is_1() -> None:
    scope = Scope()
    scope.entry |= {"A", "B"}
    assert scope.broadcast(A, B * 2) == A
    (guard,) = scope.guards
    guard.check({"A": 4, "B": 2})
    with pytest.raises(AssumptionFailed):
        guard.check({"A": 1, "B": 2})
    with pytest.raises(InvalidArgument, match="3 and 4"):
        guard.check({"A": 3, "B": 2})


def test_bodies_assume_what_the_graph_around_them_does() -> None:
    assert not Scope(Scope(assumes=False)).assumes


def test_equal_returns_the_number() -> None:
    assert Scope().equal(A, 4, "x") == 4
    assert Scope().equal(4, A, "x") == 4


def test_new_dims_differ_from_each_other_and_from_names() -> None:
    scope = Scope()
    inner = Scope(scope)
    made = [scope.new_dim("n"), inner.new_dim("n"), scope.new_dim("n")]
    assert len({*made, symbol("n#0"), symbol("n_0_")}) == 5

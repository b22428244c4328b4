"""Facts: what they say, how they are compared, and how two become one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import const_fact
from sardonyx.graph.dim import Dim, symbol
from sardonyx.graph.dtype import BOOL, F16, F32, I64, STRING
from sardonyx.graph.fact import (
    AnyFact,
    Fact,
    MapFact,
    OptionalFact,
    SequenceFact,
    SparseFact,
    elements,
    refines,
)
from sardonyx.ops.sequence.standard import join_facts

B, N = symbol("B"), symbol("N")


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (Fact(F32, ()), "f32[]"),
        (Fact(F32, (B, 8)), "f32[B,8]"),
        (Fact(F16, (B * 2 + 1,)), "f16[2*B + 1]"),
        (Fact(I64, None), "i64[?]"),
        (SequenceFact(Fact(F32, None)), "seq(f32[?])"),
        (SequenceFact(None), "seq(?)"),
        (OptionalFact(SequenceFact(Fact(BOOL, (2,)))), "optional(seq(bool[2]))"),
        (MapFact(STRING, Fact(F32, ())), "map(str, f32[])"),
        (SparseFact(F32, (3, 4)), "sparse(f32[3,4])"),
    ],
)
def test_text(fact: AnyFact, text: str) -> None:
    assert str(fact) == text


def test_views_of_a_shape() -> None:
    assert Fact(F32, (2, 3)).static == (2, 3)
    assert Fact(F32, (B, 3)).static is None
    assert Fact(F32, None).static is None
    assert Fact(I64, (2,), None, (3, 4)).ints == (3, 4)
    assert Fact(I64, (2,), None, (3, B)).ints is None
    assert elements(Fact(F32, (B, 3, N))) == B * N * 3
    assert elements(Fact(F32, ())) == 1
    assert elements(Fact(F32, None)) is None


def test_contents_do_not_spread_to_other_values() -> None:
    fact = const_fact(ArrayConst(np.arange(3)))
    assert fact.ints == (0, 1, 2)
    assert fact.is_const
    for other in (fact.without_contents(), fact.with_dtype(F32), fact.shaped((3, 1))):
        assert not other.is_const
        assert other.sym is None


@pytest.mark.parametrize(
    ("new", "old", "answer"),
    [
        (Fact(F32, (2,)), Fact(F32, (2,)), True),
        (Fact(F32, (2,)), Fact(F32, (B,)), True),
        (Fact(F32, (2,)), Fact(F32, None), True),
        (Fact(F32, (N,)), Fact(F32, (B,)), True),  # may be the same number
        (Fact(F32, (2,)), Fact(F32, (3,)), False),
        (Fact(F32, (B + 1,)), Fact(F32, (B,)), False),
        (Fact(F32, (2,)), Fact(F16, (2,)), False),
        (Fact(F32, (2,)), Fact(F32, (2, 1)), False),
        (Fact(F32, (2,)), SequenceFact(None), False),
        (SequenceFact(None), SequenceFact(Fact(F32, None)), True),
    ],
)
def test_refines(new: AnyFact, old: AnyFact, answer: bool) -> None:
    assert refines(new, old) is answer


def joined(a: AnyFact, b: AnyFact) -> AnyFact:
    numbers = itertools.count()

    def new_dim(hint: str) -> Dim:
        return symbol(f"{hint}{next(numbers)}")

    made = join_facts(a, b, new_dim)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (Fact(F32, (2, B)), Fact(F32, (2, B)), "f32[2,B]"),
        (Fact(F32, (2, B)), Fact(F32, (3, B)), "f32[varied0,B]"),
        (Fact(F32, (2, B)), Fact(F32, (N, 5)), "f32[varied0,varied1]"),
        (Fact(F32, (2,)), Fact(F32, (2, 2)), "f32[?]"),
        (Fact(F32, (2,)), Fact(F32, None), "f32[?]"),
        (SequenceFact(None), SequenceFact(Fact(F32, (2,))), "seq(f32[2])"),
        (SequenceFact(Fact(F32, (1,))), SequenceFact(Fact(F32, (2,))), "seq(f32[varied0])"),
        (OptionalFact(None), OptionalFact(Fact(F32, (2,))), "optional(f32[2])"),
    ],
)
def test_join(a: AnyFact, b: AnyFact, text: str) -> None:
    assert str(joined(a, b)) == text

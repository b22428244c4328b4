"""Symbolic sizes of slices and reshapes, compared with those of concrete sizes."""

from __future__ import annotations

import itertools

import pytest

from sardonyx.graph.dim import Shape, Size, evaluate, lone_name, maximum, minimum, symbol
from sardonyx.graph.guard import Scope
from sardonyx.ops.shape.standard import reshaped
from sardonyx.ops.sizes import slice_length, slice_range

D, K, B, T = (symbol(name) for name in "DKBT")
END = 2**63 - 1
BOUNDS: tuple[Size, ...] = (
    0, 1, 3, -1, -2, -7, END, -END, D, K, K * -1, D - 1, D - K, K - 1, D + K, K - 3,
)  # fmt: skip


def bound_scope() -> Scope:
    """A scope of a graph whose inputs give all of these sizes."""
    scope = Scope()
    scope.entry |= {"D", "K", "B", "T"}
    return scope


@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_inferred_lengths_of_slices(step: int) -> None:
    checked = 0
    for start, end in itertools.product(BOUNDS, repeat=2):
        g = bound_scope()
        length = slice_length(g, D, start, end, step)
        for d, k in itertools.product(range(5), repeat=2):
            dims = {"D": d, "K": k}
            if all(guard.holds(dims) for guard in g.guards):
                places = slice_range(d, evaluate(start, dims), evaluate(end, dims), step)
                assert evaluate(length, dims) == len(places), (start, end, dims)
                checked += 1
    assert checked > 5000


@pytest.mark.parametrize(
    ("start", "end", "length"),
    [
        (0, -1, maximum(D - 1, 0)),
        (1, END, maximum(D - 1, 0)),
        (0, 5, minimum(5, D)),
        (-3, END, minimum(3, D)),
        (0, D, D),
        (K, D, maximum(D - K, 0)),
        (D - 1, END, 1),
        (0, D - 1, D - 1),
    ],
)
def test_common_slices_have_short_lengths(start: Size, end: Size, length: Size) -> None:
    assert slice_length(bound_scope(), D, start, end, 1) == length


def test_data_dependent_sizes_have_no_assumptions() -> None:
    assert lone_name(slice_length(Scope(), D, 0, D - 1, 1)) not in (None, "D")


@pytest.mark.parametrize(
    ("dims", "target", "made", "n_guards"),
    [
        ((B, T, 768), (0, 0, 12, 64), (B, T, 12, 64), 0),
        ((B, T, 768), (B, T, 12, -1), (B, T, 12, 64), 0),
        ((B, T, 768), (-1, 768), (B * T, 768), 0),
        ((B, 12, T, 64), (0, -1, 768), (B, T, 768), 0),
        ((B, T), (B, K), (B, K), 1),
        ((6, 8), (K, 8), (6, 8), 1),
        ((0, 3, 4), (0, -1), (0, 12), 0),
    ],
)
def test_reshape_cancels_before_it_divides(
    dims: Shape, target: Shape, made: Shape, n_guards: int
) -> None:
    g = Scope()
    assert reshaped(g, dims, target, 0) == made
    assert len(g.guards) == n_guards

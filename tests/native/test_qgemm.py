"""Products of bytes by their kernels: packed weights, extreme numbers, odd sizes, every ISA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.program.call import Call, Packed
from sardonyx.providers.cpu import lowered
from tests.kernels import run_call
from tests.oracle import difference, feeds_of, model_of
from tests.rows import Row, case, of

EXTREME = {np.uint8: (0, 255), np.int8: (-128, 127)}
SIDES = [(a, b) for a in EXTREME for b in EXTREME]


def numbers(dtype: Any, *shape: int) -> Any:
    """Numbers of the whole range, most of them at its ends."""
    rng = np.random.default_rng(sum(shape))
    low, high = EXTREME[dtype]
    ends = rng.choice([low, high], shape)
    return np.where(rng.random(shape) < 0.7, ends, rng.integers(low, high + 1, shape)).astype(dtype)


def graph_of(row: Row, constants: tuple[str, ...]) -> Graph:
    graph = load(model_of(row, constants=constants).SerializeToString()).graph
    infer(graph)
    return graph


def check(row: Row, *constants: str) -> Call:
    """A row by its kernel against its reference, on every ISA and in parts."""
    graph = graph_of(row, constants)
    (node,) = graph.nodes
    call = lowered(node)
    assert isinstance(call, Call), call
    arrays = [None if v is None else feeds_of(row)[v.name] for v in node.inputs]
    values = {v: a for v, a in zip(node.inputs, arrays, strict=True) if v is not None}
    expected = list(node.op.run(arrays, node.attrs))
    for isa in native.isas:
        found = [run_call(call, node, values, {}, isa, splits) for splits in (1, 2, 7)]
        assert all(f[0].tobytes() == found[0][0].tobytes() for f in found), isa
        assert not difference(found[0], expected, row.ulps), isa
    return call


@pytest.mark.parametrize(("a", "b"), SIDES)
@pytest.mark.parametrize("is_const", [True, False])
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 1, 1), (2, 3, 31), (5, 7, 32), (13, 64, 33), (12, 65, 64), (97, 130, 70), (25, 259, 5)],
)
def test_sums_are_exact(a: Any, b: Any, is_const: bool, m: int, k: int, n: int) -> None:
    zeros = numbers(a, 1), numbers(b, n)
    row = case("MatMulInteger", numbers(a, m, k), numbers(b, k, n), *zeros)
    call = check(row, *(("x1", "x3") if is_const else ()))
    assert isinstance(call.inputs[1], Packed) is is_const


def test_a_long_sum_is_exact() -> None:
    a, b = np.full((3, 8191), 255, np.uint8), np.full((8191, 40), -128, np.int8)
    check(case("MatMulInteger", a, b), "x1")


def test_zero_points_of_zero_cost_nothing() -> None:
    row = case("MatMulInteger", numbers(np.uint8, 4, 9), numbers(np.int8, 9, 5), None,
               np.zeros(5, np.int8))  # fmt: skip
    assert check(row, "x1", "x3").inputs[5] is None


@pytest.mark.parametrize("a", list(EXTREME))
@pytest.mark.parametrize("y", list(EXTREME))
@pytest.mark.parametrize("n", [1, 33])
def test_results_are_rounded_and_held(a: Any, y: Any, n: int) -> None:
    scales = np.linspace(0.0001, 0.01, n).astype(np.float32)
    row = case(
        "QLinearMatMul", numbers(a, 11, 37), of(0.5), of(3, a), numbers(np.int8, 37, n), scales,
        np.zeros(n, np.int8), of(0.7), of(5, y),
    )  # fmt: skip
    check(row, "x3", "x4", "x5")


def test_stacks() -> None:
    check(case("MatMulInteger", numbers(np.uint8, 2, 3, 5, 9), numbers(np.uint8, 2, 3, 9, 7)))
    check(case("MatMulInteger", numbers(np.uint8, 2, 3, 5, 9), numbers(np.uint8, 9, 7)), "x1")


@pytest.mark.parametrize("shape", [((0, 3), (3, 5)), ((4, 3), (3, 0)), ((2, 0), (0, 5))])
def test_nothing(shape: Any) -> None:
    check(case("MatMulInteger", numbers(np.uint8, *shape[0]), numbers(np.int8, *shape[1])), "x1")

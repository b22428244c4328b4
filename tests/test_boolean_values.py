"""Booleans other than 0 and 1: attributes with any number, tensors with any bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import SardonyxError
from sardonyx.ops import all_ops, lookup
from tests.op_cases import Case, case, f32
from tests.oracle import difference, feeds_of, model_of
from tests.test_ops import CASES, GOOD, is_random, results, start, title

FLAGGED = {
    (op.key, flag): i
    for i in reversed(GOOD)
    if (op := lookup(CASES[i].domain, CASES[i].op)) is not None and not is_random(CASES[i])
    for flag in sorted(op.flags)
}


def outcome(case: Case, **options: Any) -> list[Any] | str:
    """The results of a case, or what is said against it."""
    feeds = feeds_of(case)
    try:
        session = start(case, **options)
        return list(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()}))
    except SardonyxError as error:
        return error.what


@pytest.mark.parametrize("number", [2, -1])
@pytest.mark.parametrize("key", FLAGGED, ids=lambda key: f"{key[0][1]}-{key[1]}")
def test_attributes_other_than_0_and_1_are_true(key: Any, number: int) -> None:
    case, flag = CASES[FLAGGED[key]], key[1]
    true, other = (replace(case, attrs={**case.attrs, flag: v}) for v in (1, number))
    expected, found = outcome(true), outcome(other)
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
    else:
        assert not difference(found, expected, 0)


def test_every_op_with_a_flag_is_tested() -> None:
    flags = {(op.key, f) for op in all_ops() for f in op.flags if "sardonyx" not in op.domain}
    assert {key[1] for key, _ in flags - FLAGGED.keys()} <= {"SparseToDenseMatMul"}


def test_flags_of_older_opsets() -> None:
    cases = [case("ReduceSum", f32(2, 3), axes=[1], keepdims=k, opset=11) for k in (1, 3)]
    shapes = [outcome(c)[0].shape for c in cases]  # type: ignore[union-attr]
    assert shapes == [(2, 1), (2, 1)]


def with_odd_bytes(x: Any) -> Any:
    """The same truths, where some of those that are true are not 1."""
    if not isinstance(x, np.ndarray) or x.dtype != bool:
        return x
    odd = np.resize(np.uint8([2, 255, 1, 128]), x.shape)
    return np.where(x, odd, 0).astype(np.uint8).view(bool)


TRUTHS = [
    i
    for i in GOOD
    if any(isinstance(x, np.ndarray) and x.dtype == bool for x in CASES[i].inputs)
    and not is_random(CASES[i])
]


@pytest.mark.parametrize("index", TRUTHS, ids=title)
def test_bytes_other_than_0_and_1_are_true(index: int) -> None:
    case, expected = CASES[index], [truths(x) for x in results(index)]
    feeds = {n: with_odd_bytes(x) for n, x in feeds_of(case).items()}
    fed = start(case).run(None, feeds)
    assert not difference([truths(x) for x in fed], expected, case.ulps)
    constants = [n for n, x in feeds.items() if isinstance(x, np.ndarray)]
    model = model_of(case, constants=constants)
    for tensor in model.graph.initializer:
        if feeds[tensor.name].dtype == bool:
            tensor.ClearField("int32_data")
            tensor.raw_data = feeds[tensor.name].tobytes()
    rest = {n: x for n, x in feeds.items() if n not in constants}
    folded = sardonyx.InferenceSession(model.SerializeToString()).run(None, rest)
    assert not difference([truths(x) for x in folded], expected, case.ulps)


def truths(x: Any) -> Any:
    """Truths as 0 and 1: ops that only move them hand bytes on as they are."""
    return x.view(np.uint8) != 0 if isinstance(x, np.ndarray) and x.dtype == bool else x

"""The ONNX backend suite: every case by both paths, within the tolerance of the case."""

from __future__ import annotations

import pytest

import sardonyx
from tests.conformance import LOOSER, Case, agree, suite
from tests.two_paths import both

COUNTS = {"node": 1884, "simple": 26, "light": 9, "pytorch-converted": 82, "pytorch-operator": 35}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives the test its cases."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", suite(), ids=str)


def test_the_suite_is_whole() -> None:
    found = [case.kind for case in suite()]
    assert {kind: found.count(kind) for kind in COUNTS} == COUNTS
    assert {case.name for case in suite()} >= LOOSER.keys()


def test_case(case: Case) -> None:
    for model, feeds, outputs in case.runs():
        data = model.SerializeToString()
        results = both(lambda data=data: sardonyx.InferenceSession(data), feeds)
        for want, got in zip(outputs, results, strict=True):
            agree(want, got, case)

"""Some modules by the exporter that needs nothing else; tools/exported.py runs all, by both."""

from __future__ import annotations

import dataclasses

import pytest

from tests.exported import CASES
from tests.exported.exporters import SCRIPT, outcomes
from tests.exported.module_case import ModuleCase

# One for each kind of thing that an exporter writes in a way of its own.
SOME = (
    "einsum of heads",
    "conv2d, any size",
    "average pool, rounded up",
    "group norm, any size",
    "lstm, both ways",
    "scaled dot product, causal",
    "tokens and places",
    "arange of a size",
    "pad to a multiple",
    "interpolate as another",
    "index by pairs",
    "put a part",
    "division rounded down",
    "cross entropy, some ignored",
    "branches",
    "collected rows",
)


def named(name: str) -> ModuleCase:
    (case,) = (r for r in CASES if r.name == name)
    return case


@pytest.mark.parametrize("name", SOME)
def test_modules(name: str) -> None:
    found = list(outcomes(named(name), None, SCRIPT))
    assert len(found) == len(SCRIPT)
    assert [o for o in found if o.kind != "same"] == []


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_a_wrong_result_is_detected() -> None:
    """A module that is another one each time it is asked is told apart from itself."""
    calls: list[int] = []

    def inputs(n: int) -> list[object]:
        calls.append(n)
        return [x + len(calls) for x in named("arange of a size").inputs(n)]

    case = dataclasses.replace(named("softsign"), inputs=inputs)  # type: ignore[arg-type]
    found = list(outcomes(case, None, SCRIPT))
    assert {o.kind for o in found} == {"differs"}


def test_exporter_refusals_are_reported() -> None:
    found = list(outcomes(named("bilinear"), None, SCRIPT))
    assert {o.kind for o in found} == {"refused"}
    assert "aten::bilinear" in found[0].detail

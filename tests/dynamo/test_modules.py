"""Modules of every family of torch.nn: training and evaluation against eager torch.

A call that torch runs, and a graph break, must be in the case, with its reason.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.dynamo.modules import (  # noqa: E402 - after the check for torch
    activations,
    attention,
    convolutions,
    functions,
    losses,
    norms,
    pooling,
    recurrent,
)
from tests.dynamo.modules.case import check  # noqa: E402

FAMILIES = (activations, attention, convolutions, functions, losses, norms, pooling, recurrent)
CASES = {
    f"{family.__name__.rpartition('.')[2]}: {name}": case
    for family in FAMILIES
    for name, case in family.CASES.items()
}


@pytest.mark.parametrize("name", CASES)
def test_module(name: str) -> None:
    check(CASES[name])

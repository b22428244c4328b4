"""Tables of rules are left out for graphs that no rule in them could match."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sardonyx.load.upgrade
from sardonyx import passes
from sardonyx.load.upgrade import FAMILIES
from sardonyx.passes.labels import CLASSIFIERS
from sardonyx.passes.pattern import Call, Pattern
from sardonyx.passes.turns import TURNS, bytes_mean, bytes_product, pool, product

# All but FLOATS: that their operands come from a DequantizeLinear, these rules ask themselves.
TABLES = {
    f"{table.module}.{table.name}": table
    for stage in (
        passes.BASIC,
        passes.EXTENDED,
        passes.APPROXIMATE,
        passes.STEPS,
        passes.INTEGERS,
        passes.LOWERED,
    )
    for table in stage
}


def ops_of(pattern: Pattern) -> Iterator[str]:
    """The ops that a graph must have for a pattern to match."""
    if isinstance(pattern, Call):
        yield pattern.op
        for arg in pattern.args:
            yield from ops_of(arg)


@pytest.mark.parametrize("name", TABLES)
def test_every_pattern_has_an_op_that_its_table_waits_for(name: str) -> None:
    table = TABLES[name]
    for rules in table.rules.values():
        for rule in rules:
            assert not table.ops or table.ops & set(ops_of(rule.pattern)), rule.name


def test_every_op_that_images_are_turned_for_is_waited_for() -> None:
    turners = (product, pool, bytes_product, bytes_mean)
    assert {name for (_, name), turner in TURNS.items() if turner in turners} == passes.IMAGES


def test_every_classifier_is_waited_for() -> None:
    assert set(CLASSIFIERS) == passes.CLASSIFIERS


def test_every_file_of_upgrades_is_known() -> None:
    folder = Path(sardonyx.load.upgrade.__file__).parent
    assert {path.stem for path in folder.glob("[a-z]*.py")} == FAMILIES

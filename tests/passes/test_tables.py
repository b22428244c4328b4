"""Tables of rules are left out for graphs that no rule in them could match."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sardonyx.load.upgrade
from sardonyx.load.upgrade import FAMILIES
from sardonyx.passes.labels import CLASSIFIERS
from sardonyx.passes.pattern import Call, Pattern
from sardonyx.passes.pipeline import LOWER_CPU, OPTIMIZE
from sardonyx.passes.turns import TURNS, bytes_mean, bytes_product, pool, product

# All but FLOATS, whose rules ask themselves whether their operands come from a DequantizeLinear.
TABLES = {
    table.path: table
    for each in (*OPTIMIZE, *LOWER_CPU)
    if not isinstance(each.run, str)
    for table in each.run
    if table.path != "quantize.FLOATS"
}
PASSES = {each.name: each for each in LOWER_CPU}


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
    images = {name for (_, name), turner in TURNS.items() if turner in turners}
    assert images == PASSES["channels_last"].any_op


def test_every_classifier_is_waited_for() -> None:
    assert set(CLASSIFIERS) == PASSES["number_labels"].any_op


def test_every_file_of_upgrades_is_known() -> None:
    folder = Path(sardonyx.load.upgrade.__file__).parent
    assert {path.stem for path in folder.glob("[a-z]*.py")} == FAMILIES

"""Rule tables are skipped only for graphs in which no rule of them can match."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sardonyx.ops import all_ops
from sardonyx.passes.class_labels import CLASSIFIERS
from sardonyx.passes.layout.rules import NHWC_RULES, conv, pooling, quantized_image, weight_gradient
from sardonyx.passes.pipeline import LOWER_CPU, OPTIMIZE, PIPELINE
from sardonyx.passes.rule import OpPattern, Pattern

# All but FLOATS, whose rules ask themselves whether their operands come from a DequantizeLinear.
TABLES = {
    table.path: table
    for each in (*OPTIMIZE, *LOWER_CPU)
    if not isinstance(each.run, str)
    for table in each.run
    if table.path != "quantize.FLOAT_RESULTS"
}
PASSES = {each.name: each for each in LOWER_CPU}


def ops_of(pattern: Pattern) -> Iterator[str]:
    """The ops that a graph must have for a pattern to match."""
    if isinstance(pattern, OpPattern):
        yield pattern.op
        for arg_reduce in pattern.args:
            yield from ops_of(arg_reduce)


@pytest.mark.parametrize("name", TABLES)
def test_every_pattern_has_an_op_of_its_table(name: str) -> None:
    table = TABLES[name]
    for rule in table.rules:
        assert not table.ops or table.ops & set(ops_of(rule.pattern)), rule.name


FORMER_NAMES = [
    "add_steps",
    "alone",
    "concat_steps",
    "content",
    "conv_bias",
    "conv_float",
    "conv_norm",
    "conv_steps",
    "dynamic_product",
    "element",
    "integer_conv",
    "integer_product",
    "joined",
    "matmul_float",
    "matmul_steps",
    "max_steps",
    "mean_steps",
    "one_sided",
    "product_bias",
    "quantize_before",
    "scaled",
    "squeeze_back",
    "steps_again",
    "turned_left",
    "turned_right",
    "where_steps",
]


def test_disabled_optimizers_accepts_former_names_of_rules() -> None:
    tables = [t for each in PIPELINE if not isinstance(each.run, str) for t in each.run]
    rules = [rule for table in tables for rule in table.rules]
    assert {name for r in rules for name in r.names}.issuperset(FORMER_NAMES)


def test_layout_pass_runs_for_every_op_that_requires_nhwc() -> None:
    turners = (conv, pooling, quantized_image, weight_gradient)
    images = {name for (_, name), rule_for in NHWC_RULES.items() if rule_for in turners}
    assert images == PASSES["channels_last"].any_op


def test_label_pass_runs_for_every_classifier() -> None:
    assert set(CLASSIFIERS) == PASSES["number_labels"].any_op


def test_outputs_are_copied_for_every_op_that_updates_inputs() -> None:
    assert PASSES["copy_updated_outputs"].any_op == {op.name for op in all_ops() if op.updates}

"""Holds every declared op against its newest schema in onnx.defs, and no schema is left over."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.defs
import pytest

from sardonyx.graph.op import ML, TRAINING, Attr, Op, Slot, allowed
from sardonyx.graph.show import attr_kind
from sardonyx.load.upgrade import find, kind_before
from sardonyx.ops import OPS_INDEX, lookup

Schema = onnx.defs.OpSchema
Option = Schema.FormalParameterOption

DOMAINS = frozenset(s.domain for s in onnx.defs.get_all_schemas())
KEYS = list(OPS_INDEX.all())
# Their newest schema only says that TreeEnsemble replaces them; models use the one before.
REPLACED = {(ML, "TreeEnsembleClassifier"): 3, (ML, "TreeEnsembleRegressor"): 3}
# Constants are not nodes here, the next two are upgraded, and a Gradient becomes what it builds.
ABSENT = {("", "Constant"), ("", "Scatter"), ("", "Upsample"), (TRAINING, "Gradient")}
# Kept by onnxruntime in the standard domain, without a schema in the standard.
UNLISTED = {("", "SimplifiedLayerNormalization")}
STANDARD = [k for k in KEYS if k[0] in DOMAINS and k not in UNLISTED]
HISTORY: dict[tuple[str, str], list[Schema]] = {}
for _schema in onnx.defs.get_all_schemas_with_history():
    HISTORY.setdefault((_schema.domain, _schema.name), []).append(_schema)

KINDS = {
    "INT": "int",
    "FLOAT": "float",
    "STRING": "bytes",
    "INTS": "ints",
    "FLOATS": "floats",
    "STRINGS": "strings",
    "TENSOR": "tensor",
    "TENSORS": "tensors",
    "GRAPH": "graph",
    "TYPE_PROTO": "type",
    "SPARSE_TENSOR": "sparse",
}


def schema_of(key: tuple[str, str]) -> Schema:
    domain, name = key
    if key in REPLACED:
        return onnx.defs.get_schema(name, REPLACED[key], domain)
    return onnx.defs.get_schema(name, domain)


def declared(key: tuple[str, str]) -> Op:
    op = lookup(*key)
    assert op is not None
    return op


def test_every_standard_op_is_declared() -> None:
    missing = {(s.domain, s.name) for s in onnx.defs.get_all_schemas()} - set(KEYS) - ABSENT
    assert not missing


@pytest.mark.parametrize("key", KEYS, ids=lambda k: k[1])
def test_every_op_can_be_inferred_and_run(key: tuple[str, str]) -> None:
    op = declared(key)
    assert op.infer_rule is not None
    assert op.reference_rule is not None


@pytest.mark.parametrize("key", STANDARD, ids=lambda k: k[1])
def test_version(key: tuple[str, str]) -> None:
    assert declared(key).since == schema_of(key).since_version


@pytest.mark.parametrize("key", STANDARD, ids=lambda k: k[1])
def test_arity(key: tuple[str, str]) -> None:
    op, schema = declared(key), schema_of(key)
    assert [_marks(s) for s in op.inputs] == [_options(p) for p in schema.inputs]
    assert [_marks(s) for s in op.outputs] == [_options(p) for p in schema.outputs]


def _marks(slot: Slot) -> str:
    return "*" if slot.variadic else "?" if slot.optional else "1"


def _options(parameter: Schema.FormalParameter) -> str:
    return {Option.Single: "1", Option.Optional: "?", Option.Variadic: "*"}[parameter.option]


@pytest.mark.parametrize("key", STANDARD, ids=lambda k: k[1])
def test_attributes(key: tuple[str, str]) -> None:
    op, schema = declared(key), schema_of(key)
    ours = {name: _our_attribute(spec) for name, spec in op.attrs.items()}
    theirs = {name: _their_attribute(spec) for name, spec in schema.attributes.items()}
    for name, (kind, _, default) in ours.items():
        if kind == "list" and name in theirs:  # an empty default says nothing of its elements
            ours[name] = (theirs[name][0], False, default)
    assert ours == theirs


def _our_attribute(spec: Any) -> tuple[str, bool, Any]:
    kind = attr_kind(spec).removeprefix("array ")
    if isinstance(spec, Attr):
        return kind, spec.required, None
    return kind, False, _rounded(spec)


def _their_attribute(spec: Schema.Attribute) -> tuple[str, bool, Any]:
    kind = KINDS[str(spec.type).rpartition(".")[2]]
    if not spec.default_value.name:
        return kind, bool(spec.required), None
    value = onnx.helper.get_attribute_value(spec.default_value)
    return kind, bool(spec.required), _rounded(tuple(value) if isinstance(value, list) else value)


def _rounded(value: Any) -> Any:
    """Defaults are float32 in the standard."""
    if isinstance(value, tuple):
        return tuple(map(_rounded, value))
    return float(np.float32(value)) if isinstance(value, float) else value


@pytest.mark.parametrize("key", STANDARD, ids=lambda k: k[1])
def test_types(key: tuple[str, str]) -> None:
    op, schema = declared(key), schema_of(key)
    wrong: list[str] = []
    for position, (slot, parameter) in enumerate(zip(op.inputs, schema.inputs, strict=True)):
        ever = set().union(*(_types_at(s, position) for s in HISTORY[key]))
        wrong += _type_differences(op, slot, set(parameter.types), ever)
    assert not wrong


def _types_at(schema: Schema, position: int) -> set[str]:
    if position < len(schema.inputs):
        return set(schema.inputs[position].types)
    return {t for p in schema.inputs for t in p.types}


def _type_differences(op: Op, slot: Slot, newest: set[str], ever: set[str]) -> list[str]:
    """A slot takes the types of the newest version, and may take those that older versions had."""
    if not slot.type:
        tensors_only = all(t.startswith("tensor(") for t in newest)
        return [f"{slot.name} holds nothing but tensors: give it a type"] if tensors_only else []
    ours = {f"tensor({d.ort_name})" for d in allowed(op, slot)}
    found = [f"{slot.name} should take {t}" for t in sorted(newest - ours)]
    if slot.type not in op.types:
        return found  # any tensor: the standard names all types that it had then
    return found + [f"{slot.name} should not take {t}" for t in sorted(ours - ever)]


@pytest.mark.parametrize("key", STANDARD, ids=lambda k: k[1])
def test_slots_share_a_type_where_the_schema_says_so(key: tuple[str, str]) -> None:
    op, schema = declared(key), schema_of(key)
    slots = list(zip((*op.inputs, *op.outputs), (*schema.inputs, *schema.outputs), strict=True))
    letters = [(s, p) for s, p in slots if s.type and "(" not in p.type_str]
    wrong = [
        f"{a.name} and {b.name}"
        for i, (a, p) in enumerate(letters)
        for b, q in letters[:i]
        if (a.type == b.type) != (p.type_str == q.type_str) and not _is_one_type(op, a, b)
    ]
    assert not wrong


def _is_one_type(op: Op, a: Slot, b: Slot) -> bool:
    """Types that leave no choice say the same whether they share a name or not."""
    return allowed(op, a) == allowed(op, b) and len(allowed(op, a)) == 1


def test_kinds_of_attributes_before_an_upgrade() -> None:
    upgraded = (s for group in HISTORY.values() for s in group)
    for schema in upgraded:
        key, version = (schema.domain, schema.name), schema.since_version
        if find(*key, version) is None:
            continue
        for name, attribute in schema.attributes.items():
            kind = KINDS[attribute.type.name]
            assert kind_before(lookup(*key), schema.name, version, name) == kind, (key, version)

"""Holds the table of versions against every version of every schema in onnx.defs."""

from __future__ import annotations

import re
from typing import Any

import onnx.defs
import pytest

from sardonyx.graph.dtype import by_ort_name
from sardonyx.graph.op import ML, ONNX
from sardonyx.ops import OPS_INDEX, lookup
from sardonyx.save.since import OLDEST, _unchanged_since, lowest

Schema = onnx.defs.OpSchema
Key = tuple[str, str]

HISTORY: dict[Key, list[Schema]] = {}
for _schema in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda s: s.since_version):
    if not _schema.deprecated:
        HISTORY.setdefault((_schema.domain, _schema.name), []).append(_schema)
KEYS = [k for k in OPS_INDEX.all() if k[0] in (ONNX, ML) and k in HISTORY]


def base(key: Key) -> int:
    """The lowest version for a node that uses nothing special."""
    op = lookup(*key)
    assert op is not None
    return max(lowest(key, set()), _unchanged_since(*key, op.since))


def possible(key: Key) -> list[Schema]:
    """The schemas that a node may be saved in."""
    return [s for s, end in _spans(key) if end > base(key)]


def _spans(key: Key) -> list[tuple[Schema, int]]:
    schemas = HISTORY[key]
    ends = [*(s.since_version for s in schemas[1:]), 1000]
    return list(zip(schemas, ends, strict=True))


def features(type_text: str, slot: str) -> set[str]:
    """Return the table's name of a type of onnx.defs, at an input or output."""
    kinds = {"sequence": "seq(", "optional": "optional("}
    found = {slot, *(kind for kind, mark in kinds.items() if mark in type_text)}
    for name in re.findall(r"[a-z]+[0-9a-z]*(?=[,)])", type_text):
        dtype = by_ort_name(name)
        if dtype is not None:
            found |= {dtype.name, f"{slot}={dtype.name}"}
    return found


def slots(schema: Schema) -> dict[str, Any]:
    """Inputs and outputs by position."""
    named = {f"input{i}": p for i, p in enumerate(schema.inputs)}
    return named | {f"output{i}": p for i, p in enumerate(schema.outputs)}


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_the_form_is_the_same_from_its_lowest_version_on(key: Key) -> None:
    newest = HISTORY[key][-1]
    assert possible(key)[0].since_version <= base(key)
    for schema in possible(key):
        names = [p.name for p in schema.inputs]
        assert len(names) <= len(newest.inputs)
        for name, attribute in schema.attributes.items():
            assert attribute.default_value == newest.attributes[name].default_value, name
            assert attribute.required or not newest.attributes[name].required, name


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_attributes_and_inputs_are_there(key: Key) -> None:
    newest, least = HISTORY[key][-1], base(key)
    for name in newest.attributes:
        first = next(s.since_version for s in possible(key) if name in s.attributes)
        assert max(lowest(key, {name}), least) == max(first, least), name
    for i in range(len(newest.inputs)):
        first = next(s.since_version for s in possible(key) if len(s.inputs) > i)
        assert max(lowest(key, {f"input{i}"}), least) == max(first, least), i


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_types_are_allowed(key: Key) -> None:
    least = base(key)
    for slot, parameter in slots(HISTORY[key][-1]).items():
        for text in parameter.types:
            having = [s for s in possible(key) if slot in slots(s) and text in slots(s)[slot].types]
            needed = max(lowest(key, features(text, slot)), least)
            assert needed == max(having[0].since_version, least), (slot, text)


def test_nothing_is_older_than_the_floor() -> None:
    assert lowest((ONNX, "Relu"), set()) == OLDEST[ONNX] == 13
    assert lowest((ONNX, "Relu"), {"i32"}) == 14
    assert lowest((ONNX, "Reshape"), {"i4"}) == 21
    assert lowest((ML, "LabelEncoder"), {"keys_tensor"}) == 4
    assert lowest((ONNX, "Mod"), {"f32", "fmod=0"}) == 28
    assert lowest((ONNX, "Mod"), {"f32", "fmod=1"}) == 13

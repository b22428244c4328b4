"""Upgrades: a node of an older opset becomes nodes of the one form that later stages know.

One entry per change of meaning; a version that only widened types needs none. An entry brings any
version below its bound straight to the newest form, so a node is upgraded at most once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

from sardonyx.base.name_index import Key, NameIndex, import_if_present, module_names
from sardonyx.base.records import frozen
from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT, ONNX, Op
from sardonyx.ops import family_of, module_of
from sardonyx.ops.builder import Builder

Rule = Callable[[Builder, "OldNode"], Any]


@frozen
class OldNode:
    """A node as its model wrote it: attributes as they stood there, defaults not filled in."""

    op_type: str
    version: int
    inputs: tuple[Value | None, ...]
    attrs: dict[str, Any]
    n_outputs: int

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default that its version had."""
        return self.attrs.get(name, default)

    def given(self, least: int, most: int | None = None) -> tuple[Value | None, ...]:
        """The inputs, so many of them: exactly the `least`, or up to the `most`."""
        count, most = len(self.inputs), least if most is None else most
        if not least <= count <= most:
            wanted = least if least == most else f"{least} to {most}"
            raise InvalidGraph(
                f"{self.op_type} of opset {self.version} takes {wanted} inputs, not {count}"
            )
        return self.inputs

    def needed(self, position: int) -> Value | None:
        """An input that the node must have."""
        if position >= len(self.inputs):
            raise InvalidGraph(
                f"{self.op_type} of opset {self.version} needs {position + 1} inputs or more"
            )
        return self.inputs[position]

    def needed_attrs(self, *names: str) -> list[Any]:
        """Attributes that the node must have."""
        missing = [n for n in names if n not in self.attrs]
        if missing:
            raise InvalidGraph(f"{self.op_type} needs the attribute {missing[0]}")
        return [self.attrs[n] for n in names]

    def input(self, position: int) -> Value | None:
        """An input, or None if it was left out."""
        return self.inputs[position] if position < len(self.inputs) else None


Entry = tuple[Key, int, Rule]
ANY: Final = 1 << 62  # below this is every version

# The kinds of attributes that ops have no longer, by name.
_KINDS: Final = {
    name: kind
    for kind, names in {
        "bytes": "activation mode",
        "float": "alpha beta epsilon height_scale max min ratio scale value width_scale",
        "floats": "bias scales",
        "int": "axis broadcast is_test isinf_only isnan_only k keepdims normalized onesided "
        "output_sequence signal_ndim spatial",
        "ints": "axes border consumed_inputs directions ends paddings pads shape split starts",
        "strings": "classes_strings",
    }.items()
    for name in names.split()
}
# Those that are of another kind today, or in this op alone, and the version that changed it.
_CHANGED: Final = {
    ("Cast", "to"): (6, "bytes"),
    ("Crop", "scale"): (ANY, "ints"),
    ("GlobalLpPool", "p"): (2, "float"),
    ("LpPool", "p"): (2, "float"),
}


def upgrade(names: str, below: int, domain: str = "") -> Callable[[Rule], tuple[Entry, ...]]:
    """Decorator: table entries of the rule for these ops (words) in opsets below a version."""

    def wrap(rule: Rule) -> tuple[Entry, ...]:
        return tuple(((domain, name), below, rule) for name in names.split())

    return wrap


def as_scalar(b: Builder, x: Value | None) -> Value | None:
    """A tensor of one element reshaped to rank 0."""
    if x is None:
        return None
    return b.Reshape(x, b.const(np.zeros(0, np.int64)))


def scan() -> dict[Key, str]:
    """Ops that exist no longer, or elsewhere, and the family with the rule that replaces them."""
    found: dict[Key, str] = {}
    for family in module_names(FOLDER):
        found.update((key, family) for key in _rules(family) if module_of(*key) is None)
    return found


FOLDER: Final = os.path.dirname(__file__)
REPLACED: Final = NameIndex(FOLDER, scan)


def family_of_replaced(domain: str, name: str) -> str | None:
    """The family of an op that becomes others when it is loaded."""
    return REPLACED.find((domain, name)) if domain in (ONNX, MICROSOFT) else None


def replaced(domain: str) -> list[str]:
    """The ops of a domain that become others when they are loaded, whatever their version."""
    return sorted(name for d, name in REPLACED.all() if d == domain)


def find(domain: str, name: str, version: int) -> Rule | None:
    """The rule for a node of this version, or None if its form is today's."""
    key = (domain, name)
    family = REPLACED.listed(key) or family_of(*key) or family_of_replaced(*key)
    rules = () if family is None else _rules(family).get(key, ())
    return next((rule for below, rule in rules if version < below), None)


def kind_before(op: Op | None, op_type: str, version: int, attr: str) -> str | None:
    """The kind of an attribute of a node that is to be upgraded; None if nobody knows it."""
    changed, kind = _CHANGED.get((op_type, attr), (0, None))
    if version < changed:
        return kind
    today = None if op is None else op.attr_kinds.get(attr)
    return today or _KINDS.get(attr)


@cache
def _rules(family: str) -> dict[Key, list[tuple[int, Rule]]]:
    """The rules of a family by op, each with the version below which it applies."""
    module = import_if_present(f"sardonyx.load.upgrade.{family}")
    rules: dict[Key, list[tuple[int, Rule]]] = {}
    for key, below, rule in sorted(module.UPGRADES if module else (), key=lambda e: e[1]):
        rules.setdefault(key, []).append((below, rule))
    return rules

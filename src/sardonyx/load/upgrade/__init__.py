"""Opset upgrades: rewrites a node of an older opset into ops of the newest opset.

Later stages know only the newest version of each op. There is one rule per change of semantics; a
version that only widened the type constraints needs none. A rule upgrades any version below its
bound straight to the newest, so a node is upgraded at most once. Contrib ops that standard ops can
express are replaced here as well.
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
    """A node of the model before its upgrade; defaults of attributes are not filled in."""

    op_type: str
    version: int
    inputs: tuple[Value | None, ...]
    attrs: dict[str, Any]
    n_outputs: int

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default of its version."""
        return self.attrs.get(name, default)

    def attrs_without(self, *names: str) -> dict[str, Any]:
        """Return the attributes other than these, which the newest version of the op lacks."""
        return {name: value for name, value in self.attrs.items() if name not in names}

    def required_attrs(self, *names: str) -> list[Any]:
        """Return attributes that the node must have."""
        for name in names:
            if name not in self.attrs:
                raise InvalidGraph(f"{self} needs the attribute {name}")
        return [self.attrs[name] for name in names]

    def input(self, position: int) -> Value | None:
        """Return an input, or None if it is absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def required_input(self, position: int) -> Value | None:
        """Return an input; a node with fewer inputs is an error."""
        if position >= len(self.inputs):
            raise InvalidGraph(f"{self} needs {position + 1} inputs or more")
        return self.inputs[position]

    def checked_inputs(self, fewest: int, most: int | None = None) -> tuple[Value | None, ...]:
        """Return the inputs after a check that there are `fewest` to `most` of them."""
        count, most = len(self.inputs), fewest if most is None else most
        if not fewest <= count <= most:
            expected = fewest if fewest == most else f"{fewest} to {most}"
            raise InvalidGraph(f"{self} takes {expected} inputs, not {count}")
        return self.inputs

    def __str__(self) -> str:
        return f"{self.op_type} of opset {self.version}"


Entry = tuple[Key, int, Rule]
ANY: Final = 1 << 62  # a bound above every opset version

# The kinds of attributes that the newest opset no longer has, by name.
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
# Exceptions by op: the version that changed the kind of an attribute, and the kind before that.
_CHANGED: Final = {
    ("Cast", "to"): (6, "bytes"),
    ("Crop", "scale"): (ANY, "ints"),
    ("GlobalLpPool", "p"): (2, "float"),
    ("LpPool", "p"): (2, "float"),
}


class Upgrades(list[Entry]):
    """The upgrade rules of one op family."""

    def rule(self, names: str, below: int = ANY, domain: str = "") -> Callable[[Rule], Rule]:
        """Decorator: the rule for ops (names separated by spaces) in opsets below a version.

        Without `below` the rule applies to every version: the op itself is replaced.
        """

        def add(rule: Rule) -> Rule:
            self.extend(((domain, name), below, rule) for name in names.split())
            return rule

        return add


def as_scalar(b: Builder, x: Value | None) -> Value | None:
    """Reshape a tensor of one element to rank 0; None stays None."""
    return None if x is None else b.Reshape(x, b.ints())


def number_like(b: Builder, number: float, x: Value | None) -> Value:
    """Return a scalar constant, cast to the element type of x."""
    with np.errstate(over="ignore"):
        value: Value = b.CastLike(b.const(np.float32(number)), x)
    return value


def scan() -> dict[Key, str]:
    """Return the ops that an upgrade replaces altogether, each with the family of its rule."""
    found: dict[Key, str] = {}
    for family in module_names(FOLDER):
        found.update((key, family) for key in _rules(family) if module_of(*key) is None)
    return found


FOLDER: Final = os.path.dirname(__file__)
REPLACED: Final = NameIndex(FOLDER, scan)


def family_of_replaced(domain: str, name: str) -> str | None:
    """Return the family of an op that loading replaces by other ops."""
    return REPLACED.find((domain, name)) if domain in (ONNX, MICROSOFT) else None


def replaced(domain: str) -> list[str]:
    """Return the ops of a domain that loading replaces by other ops, whatever their version."""
    return sorted(name for d, name in REPLACED.all() if d == domain)


def find(domain: str, name: str, version: int) -> Rule | None:
    """Return the upgrade rule for a version of an op; None if it equals the newest version."""
    key = (domain, name)
    family = REPLACED.listed(key) or family_of(*key) or family_of_replaced(*key)
    rules = () if family is None else _rules(family).get(key, ())
    return next((rule for below, rule in rules if version < below), None)


def kind_before(op: Op | None, op_type: str, version: int, attr: str) -> str | None:
    """Return the kind of an attribute before an upgrade; None if it is unknown."""
    changed, kind = _CHANGED.get((op_type, attr), (0, None))
    if version < changed:
        return kind
    newest = None if op is None else op.attr_kinds.get(attr)
    return newest or _KINDS.get(attr)


@cache
def _rules(family: str) -> dict[Key, list[tuple[int, Rule]]]:
    """Return the rules of a family by op, each with the version below which it applies."""
    module = import_if_present(f"sardonyx.load.upgrade.{family}")
    rules: dict[Key, list[tuple[int, Rule]]] = {}
    for key, below, rule in sorted(module.UPGRADES if module else (), key=lambda entry: entry[1]):
        rules.setdefault(key, []).append((below, rule))
    return rules

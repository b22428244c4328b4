"""Rewrite rules: a pattern, its conditions, and a function that builds the replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sardonyx.base.records import frozen
from sardonyx.ops.decomposition import NoMatch, known_size, need, present, ranked
from sardonyx.passes.pattern import Call, Number, Pattern


@frozen
class Rule:
    """A rewrite rule; `build(b, **holes)` returns the value that replaces the root."""

    pattern: Call
    build: Callable[..., Any]
    name: str
    names: frozenset[str]  # in `disabled_optimizers` each turns the rule off
    makers: frozenset[str]  # ops that must produce an input of the root; "" for a constant


Rules = dict[str, list[Rule]]  # by the op of the root, the last node of the pattern


def by_root(*tables: Iterable[Rule]) -> Rules:
    """The rules of several tables by the op of their root, as the driver looks them up."""
    rules: Rules = {}
    for table in tables:
        for r in table:
            rules.setdefault(r.pattern.op, []).append(r)
    return rules


def rule(*patterns: Pattern, aliases: str = "") -> Callable[[Callable[..., Any]], tuple[Rule, ...]]:
    """Decorator: the function becomes one rule per pattern; patterns share their holes.

    `aliases` are further names, separated by spaces, by which `disabled_optimizers` turns the rule
    off: those of the onnxruntime optimizer that does the same, and former names of the rule.
    """

    def wrap(build: Callable[..., Any]) -> tuple[Rule, ...]:
        rules = []
        for pattern in patterns:
            assert isinstance(pattern, Call), "a rule's pattern ends in a node"
            # The driver skips a rule early if none of the root's inputs comes from these ops.
            direct = {a.op for a in pattern.args if isinstance(a, Call)}
            direct |= {"" for a in pattern.args if isinstance(a, Number)}
            names = frozenset((build.__name__, *aliases.split()))
            rules.append(Rule(pattern, build, build.__name__, names, frozenset(direct)))
        return tuple(rules)

    return wrap


# The conditions of rules are those of decompositions.
__all__ = [
    "NoMatch",
    "Rule",
    "Rules",
    "by_root",
    "known_size",
    "need",
    "present",
    "ranked",
    "rule",
]

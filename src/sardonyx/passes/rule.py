"""Rewrite rules: a pattern, its conditions, and what to build instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sardonyx.base.records import frozen
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.passes.pattern import Call, Number, Pattern


class NoMatch(Exception):  # how a rule says no, not an error
    """A condition of a rule does not hold; the text says which."""


def need(condition: object, reason: str) -> None:
    """Says no to a rewrite, with the reason, unless the condition holds."""
    if not condition:
        raise NoMatch(reason)


def ranked(*values: Value) -> None:
    """Says no to a rewrite unless these are tensors of known rank."""
    for value in values:
        fact = value.fact
        if not isinstance(fact, Fact) or fact.shape is None:
            raise NoMatch(f"the rank of {value} is not known")


@frozen
class Rule:
    """`build(b, **holes)` returns the value that takes the root's place."""

    pattern: Call
    build: Callable[..., Any]
    name: str
    names: frozenset[str]  # its own, and that of onnxruntime's optimizer that does the same
    makers: frozenset[str]  # ops that must make some input of the root; "" stands for a constant


Rules = dict[str, list[Rule]]  # by the op that the pattern ends in


def by_root(*tables: Iterable[Rule]) -> Rules:
    """Tables of rules in the form that the driver looks them up in."""
    rules: Rules = {}
    for table in tables:
        for r in table:
            rules.setdefault(r.pattern.op, []).append(r)
    return rules


def rule(*patterns: Pattern, ort: str = "") -> Callable[[Callable[..., Any]], tuple[Rule, ...]]:
    """Decorator: the function becomes a rule for each of the patterns, which share their holes."""

    def wrap(build: Callable[..., Any]) -> tuple[Rule, ...]:
        rules = []
        for pattern in patterns:
            assert isinstance(pattern, Call), "a rule's pattern ends in a node"
            direct = {a.op for a in pattern.args if isinstance(a, Call)}
            direct |= {"" for a in pattern.args if isinstance(a, Number)}
            names = frozenset((build.__name__, ort) if ort else (build.__name__,))
            rules.append(Rule(pattern, build, build.__name__, names, frozenset(direct)))
        return tuple(rules)

    return wrap

"""Rewrite rules: a pattern, its conditions, and what to build instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.passes.pattern import Call, Pattern


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
        need(isinstance(fact, Fact) and fact.shape is not None, f"the rank of {value} is not known")


@dataclass(frozen=True, slots=True)
class Rule:
    """`build(b, **holes)` returns the value that takes the root's place."""

    pattern: Call
    build: Callable[..., Any]
    name: str
    ort_name: str  # the optimizer of onnxruntime that does the same, for disabled_optimizers


def rule(*patterns: Pattern, ort: str = "") -> Callable[[Callable[..., Any]], tuple[Rule, ...]]:
    """Decorator: the function becomes a rule for each of the patterns, which share their holes."""

    def wrap(build: Callable[..., Any]) -> tuple[Rule, ...]:
        rules = []
        for pattern in patterns:
            assert isinstance(pattern, Call), "a rule's pattern ends in a node"
            rules.append(Rule(pattern, build, build.__name__, ort))
        return tuple(rules)

    return wrap

"""Rewrite rules: a pattern, its conditions, and a function that builds the replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Size
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.passes.pattern import Call, Number, Pattern

T = TypeVar("T")


class NoMatch(Exception):
    """A condition of a rewrite does not hold; the text says which. Not an error."""


def need(condition: object, reason: str) -> None:
    """Abandon a rewrite, with the reason for the debug log, unless the condition holds."""
    if not condition:
        raise NoMatch(reason)


def present(value: T | None, reason: str) -> T:
    """Return a value that must not be None; otherwise abandon the rewrite with the reason."""
    if value is None:
        raise NoMatch(reason)
    return value


def known_size(size: Size, reason: str = "the size of a head is not known") -> int:
    """Return a dim that must be a number, not symbolic; otherwise abandon the rewrite."""
    if not isinstance(size, int):
        raise NoMatch(reason)
    return size


def ranked(*values: Value) -> None:
    """Abandon a rewrite unless these are tensors of known rank."""
    for value in values:
        fact = value.fact
        # Sequences and optionals have no rank either.
        if not isinstance(fact, Fact) or fact.shape is None:
            raise NoMatch(f"the rank of {value} is not known")


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

"""Rewrite rules: a pattern, its conditions, and a function that builds the replacement.

A pattern is an expression: `x * (P.Erf(x / SQRT2) + 1)` matches itself. Matching is a backtracking
search over generators: commutative ops are tried with both operand orders, and a hole that occurs
twice must match the same value both times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.decomposition import NoMatch, known_size, need, present, ranked

# `need`, `present` and `ranked` state the conditions of rules, as they do for decompositions.
__all__ = [
    "Hole", "NoMatch", "Number", "OpPattern", "P", "Pattern", "Rule", "Rules", "about", "by_root",
    "hole", "known_size", "match", "need", "present", "ranked", "rule", "scalar",
]  # fmt: skip

COMMUTATIVE: Final = frozenset(("Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal"))
_TOLERANCE: Final = 1e-4  # exporters write the square root of 2 with 4 to 16 digits

Holes = dict[str, Any]  # the value of each hole, the node of each named call


class Pattern:
    """A condition on the subgraph that computes a value; operators build calls of ops."""

    __slots__ = ()

    # Numbers are right operands only: matching tries both operand orders.

    def __add__(self, other: Operand) -> Pattern:
        return OpPattern("Add", (self, _pattern(other)))

    def __sub__(self, other: Operand) -> Pattern:
        return OpPattern("Sub", (self, _pattern(other)))

    def __mul__(self, other: Operand) -> Pattern:
        return OpPattern("Mul", (self, _pattern(other)))

    def __truediv__(self, other: Operand) -> Pattern:
        return OpPattern("Div", (self, _pattern(other)))


Operand = Pattern | float | int


def _pattern(operand: Operand) -> Pattern:
    return operand if isinstance(operand, Pattern) else Number(float(operand))


@frozen
class Hole(Pattern):
    """Matches any value; the same hole twice matches the same value twice."""

    name: str


@frozen
class Number(Pattern):
    """Matches a constant with one element: this number, or one close to it."""

    value: float
    is_rough: bool = False


@frozen
class OpPattern(Pattern):
    """Matches the first output of a node. With `rest`, further inputs may follow."""

    op: str
    args: tuple[Pattern, ...]
    name: str = ""
    rest: bool = False
    domain: str = ""

    def named(self, name: str) -> OpPattern:
        """The same pattern; the rule receives the node under this name."""
        return OpPattern(self.op, self.args, name, self.rest, self.domain)


def about(value: float) -> Number:
    """A number that exporters write with more or fewer digits."""
    return Number(value, is_rough=True)


def hole(name: str) -> Hole:
    """A hole; the rule receives the matched value under its name."""
    return Hole(name)


class _Ops:
    """`P.Erf(x)` is a call of Erf; `P.Conv(x, w, rest=True)` may have further inputs."""

    def __getattr__(self, op: str) -> Callable[..., OpPattern]:
        def call(*args: Operand, rest: bool = False, domain: str = "") -> OpPattern:
            return OpPattern(op, tuple(_pattern(a) for a in args), "", rest, domain)

        return call


P: Final = _Ops()


def match(pattern: OpPattern, node: Node) -> tuple[Holes, list[Node]] | None:
    """Match a pattern whose root is this node.

    Returns the values of the holes and the covered nodes, the root first; None if there is no match
    whose inner values are private.
    """
    # Another operand order may give a match with private inner values.
    for holes, nodes in _calls(pattern, node, {}, ()):
        if _is_private(nodes):
            return holes, list(nodes)
    return None


def _is_private(nodes: tuple[Node, ...]) -> bool:
    """Whether only covered nodes read the covered nodes' outputs, but for the root's."""
    covered = set(nodes)
    # Otherwise the inner node would remain for its other reader, and be computed twice.
    for node in nodes[1:]:
        for value in node.outputs:
            if value.n_exits or any(reader not in covered for reader, _ in value.uses):
                return False
    return not any(v.is_used for v in nodes[0].outputs[1:])


_Match = tuple[Holes, tuple[Node, ...]]


def _values(
    pattern: Pattern, value: Value | None, holes: Holes, nodes: tuple[Node, ...]
) -> Iterator[_Match]:
    """Every match of a pattern other than a hole with a value."""
    # An optional input that is left out matches nothing.
    if value is None:
        return
    if isinstance(pattern, Number):
        if _is_number(value, pattern):
            yield holes, nodes
    elif isinstance(pattern, OpPattern) and value.node is not None and value.index == 0:
        yield from _calls(pattern, value.node, holes, nodes)


def _calls(
    pattern: OpPattern, node: Node, holes: Holes, nodes: tuple[Node, ...]
) -> Iterator[_Match]:
    """Every match of a call with a node."""
    op = node.op
    if op.name != pattern.op or op.domain != pattern.domain:
        return
    inputs, args = node.inputs, pattern.args
    if len(inputs) != len(args) and not (pattern.rest and len(inputs) >= len(args)):
        return
    if nodes and node.graph is not nodes[0].graph:
        return  # a body runs many times or never: no rewrite spans its boundary
    # A name that occurs twice in a pattern refers to the same node.
    if pattern.name:
        if holes.get(pattern.name, node) is not node:
            return
        holes = {**holes, pattern.name: node}
    # Bindings and covered nodes are immutable: backtracking needs no undo.
    nodes = (*nodes, node) if node not in nodes else nodes
    # A commutative op matches with its operands in either order.
    orders = [args]
    if op.name in COMMUTATIVE and len(args) == 2 and len(inputs) == 2:
        orders.append((args[1], args[0]))
    for order in orders:
        yield from _all(order, inputs, holes, nodes)


def _all(
    patterns: tuple[Pattern, ...],
    values: tuple[Value | None, ...],
    holes: Holes,
    nodes: tuple[Node, ...],
) -> Iterator[_Match]:
    """Every match of several patterns with as many values: depth first, with backtracking."""
    for i, (pattern, value) in enumerate(zip(patterns, values, strict=False)):
        if not isinstance(pattern, Hole):
            # Continue with the remaining patterns for each way in which this one matches.
            for state in _values(pattern, value, holes, nodes):
                yield from _all(patterns[i + 1 :], values[i + 1 :], *state)
            return
        # A hole: consistent with an earlier occurrence, or bound now.
        known = holes.get(pattern.name)
        if value is None or (known is not None and known is not value):
            return
        if known is None:
            holes = {**holes, pattern.name: value}
    yield holes, nodes


def _is_number(value: Value, pattern: Number) -> bool:
    """Whether a value is the constant that a Number describes."""
    if (number := scalar(value)) is None:
        return False
    # The pattern's number as the tensor's type rounds it: 0.044715 is another float16 number.
    as_typed = float(np.asarray(pattern.value).astype(value.tensor.dtype.np))
    is_close = abs(number - pattern.value) <= _TOLERANCE * abs(pattern.value)
    return number == as_typed or (pattern.is_rough and is_close)


def scalar(value: Value | None) -> float | None:
    """The number in a constant with one element; None for other values."""
    const = None if value is None else value.const
    if const is None or const.count != 1 or const.dtype.kind not in ("float", "int", "uint"):
        return None
    return float(const.read().reshape(())[()])


@frozen
class Rule:
    """A rewrite rule; `build(b, **holes)` returns the value that replaces the root."""

    pattern: OpPattern
    build: Callable[..., Any]
    name: str
    names: frozenset[str]  # in `disabled_optimizers` each turns the rule off
    producers: frozenset[str]  # ops that must produce an input of the root; "" for a constant


Rules = dict[str, list[Rule]]  # by the op of the root, the last node of the pattern


def by_root(*tables: Iterable[Rule]) -> Rules:
    """The rules of several tables, in this order, by the op of their root."""
    rules: Rules = {}
    for r in chain.from_iterable(tables):
        rules.setdefault(r.pattern.op, []).append(r)
    return rules


def rule(*patterns: Pattern, aliases: str = "") -> Callable[[Callable[..., Any]], tuple[Rule, ...]]:
    """Decorator: the function becomes one rule per pattern; patterns share their holes.

    `aliases` are further names, separated by spaces, by which `disabled_optimizers` turns the rule
    off: those of the onnxruntime optimizer that does the same, and former names of the rule.
    """

    def wrap(build: Callable[..., Any]) -> tuple[Rule, ...]:
        rules, names = [], frozenset((build.__name__, *aliases.split()))
        for pattern in patterns:
            assert isinstance(pattern, OpPattern), "a rule's pattern ends in a node"
            # The driver skips a rule early if none of the root's inputs comes from these ops.
            direct = {a.op for a in pattern.args if isinstance(a, OpPattern)}
            direct |= {"" for a in pattern.args if isinstance(a, Number)}
            rules.append(Rule(pattern, build, build.__name__, names, frozenset(direct)))
        return tuple(rules)

    return wrap

"""Patterns as expressions: `x * (P.Erf(x / SQRT2) + 1)` finds itself, operands in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Node, Value

COMMUTATIVE: Final = frozenset(("Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal"))
_TOLERANCE: Final = 1e-4  # exporters write the square root of 2 with 4 to 16 digits

Found = dict[str, Any]  # holes to values, named calls to nodes


class Pattern:
    """Something that matches a value."""

    __slots__ = ()

    def __add__(self, other: Operand) -> Pattern:
        return Call("Add", (self, _pattern(other)))

    def __radd__(self, other: Operand) -> Pattern:
        return Call("Add", (_pattern(other), self))

    def __sub__(self, other: Operand) -> Pattern:
        return Call("Sub", (self, _pattern(other)))

    def __mul__(self, other: Operand) -> Pattern:
        return Call("Mul", (self, _pattern(other)))

    def __rmul__(self, other: Operand) -> Pattern:
        return Call("Mul", (_pattern(other), self))

    def __truediv__(self, other: Operand) -> Pattern:
        return Call("Div", (self, _pattern(other)))

    def __pow__(self, other: Operand) -> Pattern:
        return Call("Pow", (self, _pattern(other)))


Operand = Pattern | float | int


def _pattern(operand: Operand) -> Pattern:
    return operand if isinstance(operand, Pattern) else Number(float(operand))


@frozen
class Hole(Pattern):
    """Any value; the same hole twice is the same value twice."""

    name: str


@frozen
class Number(Pattern):
    """A constant of one element: this number as its type has it, or one about as large."""

    value: float
    is_rough: bool = False


@frozen
class Call(Pattern):
    """The first output of a node. With `rest`, any number of inputs may follow those named."""

    op: str
    args: tuple[Pattern, ...]
    name: str = ""
    rest: bool = False
    domain: str = ""

    def named(self, name: str) -> Call:
        """The same, with the node handed to the rule under a name."""
        return Call(self.op, self.args, name, self.rest, self.domain)


def about(value: float) -> Number:
    """A constant that exporters write with more or fewer digits."""
    return Number(value, is_rough=True)


def hole(name: str) -> Hole:
    """A value that the rule is handed under its name."""
    return Hole(name)


class _Ops:
    """`P.Erf(x)` is a call of Erf; `P.Conv(x, w, rest=True)` one with whatever inputs follow."""

    def __getattr__(self, op: str) -> Callable[..., Call]:
        def call(*args: Operand, rest: bool = False, domain: str = "") -> Call:
            return Call(op, tuple(_pattern(a) for a in args), "", rest, domain)

        return call


P: Final = _Ops()


def match(pattern: Call, node: Node) -> tuple[Found, list[Node]] | None:
    """What the holes stand for if the pattern ends in this node; the nodes covered, it first."""
    for found, nodes in _calls(pattern, node, {}, ()):
        if _is_private(nodes):
            return found, list(nodes)
    return None


def _is_private(nodes: tuple[Node, ...]) -> bool:
    """Whether nobody outside reads what the covered nodes make, except what the first one makes."""
    covered = set(nodes)
    for node in nodes[1:]:
        for value in node.outputs:
            if value.n_exits or any(reader not in covered for reader, _ in value.uses):
                return False
    return not any(v.is_used for v in nodes[0].outputs[1:])


_State = tuple[Found, tuple[Node, ...]]


def _values(
    pattern: Pattern, value: Value | None, found: Found, nodes: tuple[Node, ...]
) -> Iterator[_State]:
    """Every way in which a pattern that is no hole matches a value."""
    if value is None:
        return
    if isinstance(pattern, Number):
        if _is_number(value, pattern):
            yield found, nodes
    elif isinstance(pattern, Call) and value.node is not None and value.index == 0:
        yield from _calls(pattern, value.node, found, nodes)


def _calls(pattern: Call, node: Node, found: Found, nodes: tuple[Node, ...]) -> Iterator[_State]:
    op = node.op
    if op.name != pattern.op or op.domain != pattern.domain:
        return
    inputs, args = node.inputs, pattern.args
    if len(inputs) != len(args) and not (pattern.rest and len(inputs) >= len(args)):
        return
    if nodes and node.graph is not nodes[0].graph:
        return  # a body runs many times, or never: nothing moves into it or out of it
    if pattern.name:
        if found.get(pattern.name, node) is not node:
            return
        found = {**found, pattern.name: node}
    nodes = (*nodes, node) if node not in nodes else nodes
    orders = [args]
    if op.name in COMMUTATIVE and len(args) == 2 and len(inputs) == 2:
        orders.append((args[1], args[0]))
    for order in orders:
        yield from _all(order, inputs, found, nodes)


def _all(
    patterns: tuple[Pattern, ...],
    values: tuple[Value | None, ...],
    found: Found,
    nodes: tuple[Node, ...],
) -> Iterator[_State]:
    for i, (pattern, value) in enumerate(zip(patterns, values, strict=False)):
        if not isinstance(pattern, Hole):
            for state in _values(pattern, value, found, nodes):
                yield from _all(patterns[i + 1 :], values[i + 1 :], *state)
            return
        known = found.get(pattern.name)
        if value is None or (known is not None and known is not value):
            return
        if known is None:
            found = {**found, pattern.name: value}
    yield found, nodes


def _is_number(value: Value, wanted: Number) -> bool:
    number = scalar(value)
    if number is None:
        return False
    as_typed = float(np.asarray(wanted.value).astype(value.tensor.dtype.np))  # of halves, rough
    if wanted.is_rough:
        return number == as_typed or abs(number - wanted.value) <= _TOLERANCE * abs(wanted.value)
    return number == as_typed


def scalar(value: Value | None) -> float | None:
    """The number in a constant of one element, if it is one."""
    const = None if value is None else value.const
    if const is None or const.count != 1 or const.dtype.kind not in ("float", "int", "uint"):
        return None
    return float(const.read().reshape(())[()])

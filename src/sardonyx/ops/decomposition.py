"""Conditions and helpers of functions that rewrite nodes: decompositions of ops, and passes.

A decomposition is declared with its op by `@op.decompose`: a function of a builder and a node that
returns the node's outputs, built of other ops. Lowering replaces nodes of ops without kernels by
it, and gradients pass through it. A condition that does not hold leaves the node as it is.
"""

from __future__ import annotations

from typing import Any, TypeVar

from sardonyx.graph.dim import Size
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value

T = TypeVar("T")
Outputs = tuple[Value | None, ...]  # None for outputs that are not computed


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


def never(node: Node) -> bool:
    """No node: kernels compute the op, and only gradients use its decomposition."""
    return False


def in_training(node: Node) -> bool:
    """No node on the CPU: only the reference makes the op's checks, which training does not need.

    Devices without a kernel do without these checks as well.
    """
    return False


def as_outputs(built: Any) -> Outputs:
    """What a decomposition returned, one value or several, as a tuple."""
    return (built,) if isinstance(built, Value) else tuple(built)

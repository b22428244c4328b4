"""Creates values over constants, with their facts."""

from __future__ import annotations

from sardonyx.graph.const import Const
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.graph.infer import MAX_SYMBOLIC, SYMBOLIC_KINDS


def constant(const: Const, name: str = "") -> Value:
    """Return a value for a constant."""
    return Value(name, const_fact(const))


def const_fact(const: Const) -> Fact:
    """Return the fact of a constant, with the elements of a short integer tensor."""
    if const.count <= MAX_SYMBOLIC and const.dtype.kind in SYMBOLIC_KINDS:
        sym = tuple(map(int, const.read().reshape(-1).tolist()))
        return Fact(const.dtype, const.shape, const, sym)
    return Fact(const.dtype, const.shape, const)

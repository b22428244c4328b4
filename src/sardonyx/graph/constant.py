"""Values that stand for constants, with their facts."""

from __future__ import annotations

from sardonyx.graph.const import Const
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.graph.infer import MAX_SYMBOLIC, SYMBOLIC_KINDS


def constant(const: Const, name: str = "") -> Value:
    """A value that stands for a constant."""
    return Value(name, const_fact(const))


def const_fact(const: Const) -> Fact:
    """The fact of a constant; the elements of short integer tensors become known."""
    if const.count <= MAX_SYMBOLIC and const.dtype.kind in SYMBOLIC_KINDS:
        sym = tuple(map(int, const.read().reshape(-1).tolist()))
        return Fact(const.dtype, const.shape, const, sym)
    return Fact(const.dtype, const.shape, const)

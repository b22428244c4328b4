"""Gives every value and node of a model a name that nothing else there has."""

from __future__ import annotations

from collections.abc import Hashable

from sardonyx.graph.const import Const
from sardonyx.graph.graph import Node, Value
from sardonyx.save.tensor import identity


class Names:
    """Names over a graph and all its bodies, which see the names around them and must not hide any.

    A value keeps its own name if that is free, else a number is appended.
    """

    def __init__(self) -> None:
        self._taken: set[str] = {""}
        self._next: dict[str, int] = {}
        self._values: dict[Value, str] = {}
        self._consts: dict[Hashable, str] = {}
        self._nodes: set[str] = {""}

    def reserve(self, name: str) -> None:
        """Keeps a name for what will be given it."""
        self._taken.add(name)

    def give(self, value: Value, name: str) -> None:
        """Gives a value a name that was kept for it."""
        self._values[value] = name

    def has(self, value: Value) -> bool:
        """Whether a value has its name yet."""
        return value in self._values

    def of(self, value: Value) -> str:
        """The name of a value that nodes make or a graph is fed."""
        name = self._values.get(value)
        if name is None:
            name = self._values[value] = self.fresh(value.name or _described(value))
        return name

    def of_const(self, value: Value, const: Const) -> tuple[str, bool]:
        """The name of a constant, and whether it is new: equal references are one tensor."""
        key = (identity(const), const.dtype, const.shape)
        name = self._consts.get(key)
        if name is not None:
            return name, False
        name = self._consts[key] = self.fresh(value.name or "const")
        return name, True

    def node(self, node: Node) -> str:
        """The name of a node; one without a name stays so."""
        if not node.name:
            return ""
        name = self._free(node.name, self._nodes)
        self._nodes.add(name)
        return name

    def fresh(self, name: str) -> str:
        """The same name or, where it is taken, one like it."""
        free = self._free(name, self._taken)
        self._taken.add(free)
        return free

    def _free(self, name: str, taken: set[str]) -> str:
        free, count = name, self._next.get(name, 0)
        while free in taken:
            count += 1
            free = f"{name}_{count}"
        self._next[name] = count
        return free


def _described(value: Value) -> str:
    node = value.node
    if node is None:
        return "value"
    return node.name or node.op.name

"""Assigns a unique name to every value and node of a saved model."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView

from sardonyx.graph.const import Const
from sardonyx.graph.graph import Node, Value
from sardonyx.save.tensor import identity


class Names:
    """Unique names over a graph and all its bodies, so that no name shadows another.

    A value keeps its name if that is free; else a number is appended.
    """

    def __init__(self) -> None:
        self._taken: set[str] = {""}
        self._next: dict[str, int] = {}
        self._values: dict[Value, str] = {}
        self._consts: dict[Hashable, str] = {}
        self._nodes: set[str] = {""}

    def reserve(self, name: str) -> None:
        """Reserve a name for a later `assign`."""
        self._taken.add(name)

    def assign(self, value: Value, name: str) -> None:
        """Assign a reserved name to a value."""
        self._values[value] = name

    def has(self, value: Value) -> bool:
        """Return whether a value has a name already."""
        return value in self._values

    def values(self) -> ItemsView[Value, str]:
        """Return the values that have a name, with their names; constants are not among them."""
        return self._values.items()

    def of(self, value: Value) -> str:
        """Return the name of a node output or graph input, assigned on first use."""
        name = self._values.get(value)
        if name is None:
            node = value.node
            fallback = "value" if node is None else node.name or node.op.name
            name = self._values[value] = self.unique_name(value.name or fallback)
        return name

    def of_const(self, value: Value, const: Const) -> tuple[str, bool]:
        """Return the name of a constant and whether it is new: equal references share a tensor."""
        key = (identity(const), const.dtype, const.shape)
        name = self._consts.get(key)
        if name is not None:
            return name, False
        name = self._consts[key] = self.unique_name(value.name or "const")
        return name, True

    def node(self, node: Node) -> str:
        """Return a unique name for a node; empty if the node has none."""
        if not node.name:
            return ""
        name = self._free(node.name, self._nodes)
        self._nodes.add(name)
        return name

    def unique_name(self, name: str) -> str:
        """Return a free name: this one, or this one with a number."""
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

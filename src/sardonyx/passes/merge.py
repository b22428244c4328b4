"""Common subexpressions: a node that does what an earlier one did gives way to it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.const import Const
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value

_SHARED_BELOW: Final = 64  # bytes; constants up to this size are compared by what they hold


class Merger:
    """Remembers what each node of one graph computes."""

    def __init__(self) -> None:
        self._seen: dict[Any, Node] = {}

    def find(self, node: Node) -> Node | None:
        """A node met before that computes the same, if there is one."""
        if not node.op.is_pure or node.op.has_bodies or _reads_alone(node):
            return None
        key = _key(node)
        if key is None:
            return None
        twin = self._seen.setdefault(key, node)
        if twin is node:
            return None
        # Sizes that depend on data have names of their own in each node's facts.
        if twin not in node.graph.nodes or _key(twin) != key or _shapes(twin) != _shapes(node):
            self._seen[key] = node
            return None
        return twin


def _reads_alone(node: Node) -> bool:
    """Whether nobody else reads one of a node's inputs: then nobody computes the same from it."""
    for value in node.inputs:
        if value is not None and len(value.uses) == 1 and value.const is None:
            return True
    return False


def _shapes(node: Node) -> list[Any]:
    return [v.fact.shape if isinstance(v.fact, Fact) else v.fact for v in node.outputs]


def _key(node: Node) -> Any:
    attrs = []
    for name, value in node.attrs.items():
        if isinstance(value, Graph):
            return None
        attrs.append((name, _attribute(value)))
    inputs = tuple(_input(v) for v in node.inputs)
    # What is computed again to be forgotten in between has other marks than the first time.
    return node.op.key, inputs, tuple(attrs), len(node.outputs), node.marks


def _attribute(value: Any) -> Any:
    """An attribute as it is compared: long ones by identity, floats by their bits."""
    if isinstance(value, float):
        return value.hex()  # 0.0 and -0.0 are equal, and not the same
    if isinstance(value, tuple):
        return tuple(map(_attribute, value))
    return id(value) if isinstance(value, (np.ndarray, Const, list)) else value


def _input(value: Value | None) -> Any:
    """What an input is: the value itself, or the contents of a small constant."""
    const = None if value is None else value.const
    if const is None or const.size_bytes > _SHARED_BELOW or const.dtype.kind == "string":
        return id(const) if const is not None else id(value)
    return const.dtype.name, const.shape, const.read().tobytes()

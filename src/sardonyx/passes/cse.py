"""Common subexpression elimination: a node that repeats an earlier one is replaced by it.

The algorithm is hash consing: nodes with equal keys (op, attributes, inputs) compute the same.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.const import Const
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value

_BY_CONTENT: Final = 64  # bytes; constants up to this size are compared by their contents


class CommonSubexpressions:
    """The nodes of one graph by what they compute."""

    def __init__(self) -> None:
        self._seen: dict[Any, Node] = {}

    def find(self, node: Node) -> Node | None:
        """An earlier node that computes the same, if there is one."""
        # Random ops differ in each call; the cheap tests come before hashing.
        if not node.op.is_pure or node.op.has_bodies or _reads_alone(node):
            return None
        if (key := _key(node)) is None:
            return None
        earlier = self._seen.setdefault(key, node)
        if earlier is node:
            return None
        # The earlier node may have been removed or changed since. Data-dependent dims have a new
        # name in each node's facts, so equal keys do not imply equal shapes.
        is_current = earlier in node.graph.nodes and _key(earlier) == key
        if not is_current or _shapes(earlier) != _shapes(node):
            self._seen[key] = node
            return None
        return earlier


def _reads_alone(node: Node) -> bool:
    """Whether an input has no other reader, so that no other node computes the same."""
    for v in node.inputs:  # noqa: SIM110 - a generator is slower, and this is hot
        if v is not None and len(v.uses) == 1 and v.const is None:
            return True
    return False


def _shapes(node: Node) -> list[Any]:
    """The shapes of the outputs."""
    return [v.fact.shape if isinstance(v.fact, Fact) else v.fact for v in node.outputs]


def _key(node: Node) -> Any:
    """A hashable description of what a node computes; None for nodes with bodies."""
    attrs = []
    for name, value in node.attrs.items():
        if isinstance(value, Graph):
            return None
        attrs.append((name, _attribute(value)))
    # Outputs of merged nodes are paired, so their number is part of the key.
    inputs = tuple(_input(v) for v in node.inputs)
    # Recomputation in training repeats nodes on purpose, with other annotations than the originals.
    return node.op.key, inputs, tuple(attrs), len(node.outputs), node.annotations


def _attribute(value: Any) -> Any:
    """An attribute as it is compared: arrays by identity, floats by their bits."""
    if isinstance(value, float):
        return value.hex()  # 0.0 == -0.0, but results differ
    if isinstance(value, tuple):
        return tuple(map(_attribute, value))
    return id(value) if isinstance(value, (np.ndarray, Const, list)) else value


def _input(value: Value | None) -> Any:
    """An input as it is compared: by identity, or by the contents of a small constant."""
    const = None if value is None else value.const
    if const is None or const.size_bytes > _BY_CONTENT or const.dtype.kind == "string":
        return id(const) if const is not None else id(value)
    return const.dtype.name, const.shape, const.read().tobytes()

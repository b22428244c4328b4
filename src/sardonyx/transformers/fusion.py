"""The driver of fusions into com.microsoft ops, and the names of the nodes that they add.

They run on a graph that the portable passes have simplified, and are only for models that are
saved: Sardonyx's own lowering recognizes the parts.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.graph.dtype import I32
from sardonyx.graph.graph import Graph, Node, Value, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.builder import Builder
from sardonyx.passes.replace import drop, replace_value, try_build

Replaced = dict[Value, Value]  # new values by those that they replace


class FusionBuilder(Builder):
    """Builds one fused node, with what it needs around it.

    The fused node is named `prefix` and a number; labelled nodes and values have a suffix to that.
    """

    __slots__ = ("labels", "prefix")

    def __init__(self, graph: Graph, scope: Scope | None, prefix: str) -> None:
        super().__init__(graph, scope)
        self.prefix = prefix
        self.labels: dict[Node | Value, str] = {}

    def label(self, value: Value, suffix: str) -> Value:
        """Return a value, which gets the fused node's name and a suffix."""
        self.labels[value] = suffix
        return value

    def label_node(self, value: Value, suffix: str) -> Value:
        """Return a value, whose node gets the fused node's name and a suffix."""
        assert value.node is not None
        self.labels[value.node] = suffix
        return value


Fusion = Callable[[FusionBuilder, Node], Replaced]


class Fuser:
    """Applies fusions to a graph and its bodies."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._names = {node.name for node in graph.all_nodes()}

    def apply(self, fusion: Fusion, prefix: str) -> int:
        """Apply a fusion wherever it matches; return how often it did."""
        count = 0
        for each in self._graph.family():
            for node in each.sorted_nodes():
                if node in each.nodes:
                    count += self._apply(FusionBuilder(each, each.scope, prefix), node, fusion)
            each.sort()
        return count

    def _apply(self, b: FusionBuilder, node: Node, fusion: Fusion) -> bool:
        replaced = try_build(b, lambda: fusion(b, node), b.prefix, node)
        if not replaced:
            return False
        makers = [value.node for value in replaced if value.node is not None]
        for old, new in replaced.items():
            replace_value(b.graph, old, new)
        self._name(b, node)
        # A rule may have built nodes on the way to the fused one that nothing reads in the end.
        drop(b.graph, [*makers, *b.new_nodes])
        return True

    def _name(self, b: FusionBuilder, source: Node) -> None:
        number = 0
        while (name := f"{b.prefix}_{number}") in self._names:
            number += 1
        self._names.add(name)
        for node in b.new_nodes:
            node.annotations = source.annotations
            if node.op.domain == MICROSOFT:
                node.name = name
        for labelled, suffix in b.labels.items():
            if isinstance(labelled, Node) or not labelled.n_exits:
                labelled.name = f"{name}_{suffix}"


def has_unit_steps(node: Node) -> bool:
    """Whether a Slice takes adjacent elements, in their order."""
    steps = optional_input(node, 4)
    return steps is None or set(steps.tensor.ints or ()) == {1}


def as_int32(b: Builder, value: Value) -> Value:
    """Return a mask or ids in int32, which fused ops take."""
    narrow = b.cast(value, I32)
    if narrow is not value:
        narrow.name = f"{value.name}_int32"
    return narrow

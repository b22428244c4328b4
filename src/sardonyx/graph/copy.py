"""Copies a graph: new nodes and values over the same constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sardonyx.base.records import replace
from sardonyx.graph.dim import Shape, Size, substitute
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Attrs, Graph, Node, Value

Copies = dict[Value, Value]


def copied(graph: Graph, dims: Mapping[str, int] | None = None) -> Graph:
    """Return a copy of a graph, not yet inferred; `dims` fixes symbolic dims of inputs by name."""
    return _copied(graph, {}, dict(dims or {}))


def _copied(graph: Graph, copies: Copies, sizes: dict[str, Size]) -> Graph:
    copy = Graph(graph.name)
    for value in graph.inputs:
        fact = value.fact
        if isinstance(fact, Fact) and fact.shape is not None:
            fact = replace(fact, shape=_substituted(fact.shape, sizes))
        copies[value] = Value(value.name, fact)
        copy.add_input(copies[value], graph.defaults.get(value))
    copy_nodes(graph.sorted_nodes(), copy, copies, sizes)
    declared = [None if d is None else _substituted(d, sizes) for d in graph.declared]
    copy.set_outputs([_copy_of(value, copies) for value in graph.outputs], declared)
    return copy


def copy_nodes(
    nodes: Iterable[Node], into: Graph, copies: Copies, sizes: dict[str, Size] | None = None
) -> None:
    """Add copies of nodes to a graph; `copies` maps values to their copies, and is extended."""
    for node in nodes:
        outputs = [Value(value.name) for value in node.outputs]
        attrs: Attrs = {
            name: _copied(attr, copies, sizes or {}) if isinstance(attr, Graph) else attr
            for name, attr in node.attrs.items()
        }
        inputs = [None if value is None else _copy_of(value, copies) for value in node.inputs]
        copy = into.add(node.op, inputs, attrs, outputs, node.name)
        copy.annotations = node.annotations
        copies.update(zip(node.outputs, outputs, strict=True))


def _copy_of(value: Value, copies: Copies) -> Value:
    """Return the copy of a value; constants, which no node makes, are copied on first use."""
    if value not in copies:
        copies[value] = Value(value.name, value.fact)
    return copies[value]


def _substituted(shape: Shape, sizes: dict[str, Size]) -> Shape:
    return tuple(substitute(size, sizes) for size in shape) if sizes else shape

"""Copies a graph: new nodes and values over the same constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sardonyx.base.records import replace
from sardonyx.graph.dim import Shape, Size, substitute
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Attrs, Graph, Node, Value

Copies = dict[Value, Value]


def copied(graph: Graph, dims: Mapping[str, int] | None = None) -> Graph:
    """Return a copy of a graph, not yet inferred; `dims` fixes symbolic dims of inputs by name."""
    return _copied(graph, {}, dict(dims or {}))


def _copied(graph: Graph, copies: Copies, sizes: dict[str, Size]) -> Graph:
    copy = Graph(graph.name)
    for value in graph.inputs:
        copies[value] = Value(value.name, _substituted(value.fact, sizes))
        copy.add_input(copies[value], graph.defaults.get(value))
    copy_nodes(graph.sorted_nodes(), copy, copies, sizes)
    declared = [None if d is None else _substituted_shape(d, sizes) for d in graph.declared]
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


def _substituted(fact: AnyFact | None, sizes: dict[str, Size]) -> AnyFact | None:
    if not sizes or not isinstance(fact, Fact) or fact.shape is None:
        return fact
    return replace(fact, shape=_substituted_shape(fact.shape, sizes))


def _substituted_shape(shape: Shape, sizes: dict[str, Size]) -> Shape:
    return tuple(substitute(size, sizes) for size in shape) if sizes else shape

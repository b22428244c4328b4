"""Copies a graph: new nodes and values over the same constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sardonyx.base.records import replace
from sardonyx.graph.dim import Shape, Size, substitute
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Attrs, Graph, Node, Value

Copies = dict[Value, Value]


def copied(graph: Graph, dims: Mapping[str, int] | None = None) -> Graph:
    """The same graph once more, not yet inferred; `dims` settles sizes of inputs by name."""
    sizes: dict[str, Size] = dict(dims or {})
    return _copied(graph, {}, sizes)


def _copied(graph: Graph, copies: Copies, sizes: dict[str, Size]) -> Graph:
    made = Graph(graph.name)
    for value in graph.inputs:
        copies[value] = Value(value.name, _settled(value.fact, sizes))
        made.add_input(copies[value], graph.defaults.get(value))
    copy_nodes(graph.sorted_nodes(), made, copies, sizes)
    declared = [None if d is None else _settled_shape(d, sizes) for d in graph.declared]
    made.set_outputs([_copy_of(value, copies) for value in graph.outputs], declared)
    return made


def copy_nodes(
    nodes: Iterable[Node], into: Graph, copies: Copies, sizes: dict[str, Size] | None = None
) -> None:
    """Adds nodes once more to a graph; `copies` says what stands for values, and learns it."""
    for node in nodes:
        outputs = [Value(value.name) for value in node.outputs]
        attrs: Attrs = {
            name: _copied(held, copies, sizes or {}) if isinstance(held, Graph) else held
            for name, held in node.attrs.items()
        }
        inputs = [None if value is None else _copy_of(value, copies) for value in node.inputs]
        twin = into.add(node.op, inputs, attrs, outputs, node.name)
        twin.annotations = node.annotations
        copies.update(zip(node.outputs, outputs, strict=True))


def _copy_of(value: Value, copies: Copies) -> Value:
    """What stands for a value; a constant is met where it is read."""
    if value not in copies:
        copies[value] = Value(value.name, value.fact)
    return copies[value]


def _settled(fact: AnyFact | None, sizes: dict[str, Size]) -> AnyFact | None:
    if not sizes or not isinstance(fact, Fact) or fact.shape is None:
        return fact
    return replace(fact, shape=_settled_shape(fact.shape, sizes))


def _settled_shape(shape: Shape, sizes: dict[str, Size]) -> Shape:
    return tuple(substitute(size, sizes) for size in shape) if sizes else shape

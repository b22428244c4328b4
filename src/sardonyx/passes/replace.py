"""Replacing nodes of a graph: try a replacement, carry names over, remove dead nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from sardonyx.base.log import logger
from sardonyx.errors import SardonyxError
from sardonyx.graph.dtype import STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.passes.rule import NoMatch

T = TypeVar("T")


def try_build(b: Builder, build: Callable[[], T], name: str, node: Node) -> T | None:
    """Return what `build` makes with the builder; on a failed condition undo it, return None.

    `name` and `node` say in the debug log which rewrite was tried where.
    """
    graph = b.graph
    n_guards = len(graph.scope.guards)
    try:
        return build()
    except (NoMatch, SardonyxError) as reason:
        # In reverse: a node can only be removed once nothing reads its outputs.
        for added in reversed(b.new_nodes):
            graph.remove(added)
        # Guards that inference of the removed nodes added would otherwise still be checked.
        del graph.scope.guards[n_guards:]
        logger.debug("%s not at %s: %s", name, node, reason)
        return None


def replace_value(graph: Graph, old: Value, new: Value) -> None:
    """Replace a value for all readers by another one, which also gets its name."""
    # Names are unique, and graph outputs must keep theirs.
    new.name, old.name = old.name, ""
    graph.replace(old, new)


def attribute_to(nodes: Iterable[Node], source: Node) -> None:
    """Copy the name and annotations of the node that the new nodes replace."""
    for node in nodes:
        node.name, node.annotations = source.name, source.annotations


def prune(graph: Graph) -> None:
    """Remove every node whose outputs have no reader, in the graph and its bodies."""
    # Outer graphs first: a dead node is removed with its bodies.
    for each in graph.family():
        drop(each, list(each.nodes))


def copy_updated_outputs(graph: Graph) -> None:
    """Let outputs of the model that a node updates in place be copies, made before the update.

    An Identity reads the old version: nodes that update it wait for their readers.
    """
    for value in dict.fromkeys(graph.outputs):
        if any(slot in node.op.updates.values() for node, slot in value.uses):
            copy = Builder(graph, graph.scope).Identity(value)
            graph.set_outputs(copy if v is value else v for v in graph.outputs)


def copy_fed_outputs(graph: Graph) -> None:
    """Let outputs of the model that are its inputs be copies, which a step of the run makes."""
    fed = set(graph.inputs)
    for value in dict.fromkeys(graph.outputs):
        fact = value.fact
        if value in fed and isinstance(fact, Fact) and fact.dtype is not STRING:
            copy = Builder(graph, graph.scope).Identity(value)
            graph.set_outputs(copy if v is value else v for v in graph.outputs)


def drop(graph: Graph, work: list[Node]) -> None:
    """Remove the dead nodes among these, then the producers that become dead; empties the list."""
    while work:
        node = work.pop()
        if node in graph.nodes and not node.is_used:
            work.extend(v.node for v in node.reads() if v.node is not None)
            graph.remove(node)

"""Branches of different ranks: what depends on their results is computed in each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from sardonyx.errors import SardonyxError
from sardonyx.graph.copy import copied, copy_nodes
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value

_MAX_NODES: Final = 4000  # of a graph that still grows
_ROUNDS: Final = 4  # for Ifs behind each other; each doubles the nodes


def sunk(graph: Graph, infer: Callable[[Graph], None]) -> Graph | None:
    """A copy in which readers of values of open rank are in the branches that give them.

    In a branch ranks are known, so that it can be compiled. None if it cannot be: a branch may be
    one that no run takes with what follows, or be too long.
    """
    twin = copied(graph)
    try:
        infer(twin)
        for _ in range(_ROUNDS):
            if not _sink_readers(twin):
                break
            infer(twin)
    except SardonyxError:
        return None
    return twin


def _sink_readers(graph: Graph) -> bool:
    if sum(1 for _ in graph.all_nodes()) > _MAX_NODES:
        return False
    is_changed = False
    for node in list(graph.scope.parted):
        if node in node.graph.nodes and _is_parted(node):
            _sink(node)
            is_changed = True
    return is_changed


def _is_parted(node: Node) -> bool:
    """Whether somebody reads a result of which both branches know the rank, and each another."""
    branches = node.attrs["then_branch"], node.attrs["else_branch"]
    return any(
        value.uses and _is_open(value) and not any(_is_open(b.outputs[i]) for b in branches)
        for i, value in enumerate(node.outputs)
    )


def _is_open(value: Value) -> bool:
    return not isinstance(value.fact, Fact) or value.fact.shape is None


def _sink(node: Node) -> None:
    graph = node.graph
    moved, tainted = _dependents(node)
    exits = [v for v in dict.fromkeys(graph.outputs) if v in tainted]
    read = {v: v for n in moved for v in n.reads() if v not in tainted}
    read |= {v: v for n in moved for v in _constants(n)}
    bodies = {key: node.attrs[key] for key in ("then_branch", "else_branch")}
    for body in bodies.values():
        copies = {**read, **dict(zip(node.outputs, body.outputs, strict=True))}
        copy_nodes(moved, body, copies)
        for value in exits:
            if value not in node.outputs:
                copies[value].name = ""  # which the result has
        body.set_outputs([copies[v] for v in exits], [None] * len(exits))
    results = {v: Value(v.name) for v in exits}
    graph.add(node.op, node.inputs, {**node.attrs, **bodies}, [*results.values()], node.name)
    graph.set_outputs([results.get(v, v) for v in graph.outputs])
    for gone in reversed(moved):
        graph.remove(gone)
    node.attrs = {}  # its branches are the new node's
    graph.remove(node)


def _constants(node: Node) -> Iterator[Value]:
    """Constants that a node reads, or one in its bodies; copies read the same."""
    inside = (inner for _, body in node.subgraphs for inner in body.all_nodes())
    for reader in (node, *inside):
        yield from (v for v in reader.inputs if v is not None and v.const is not None)


def _dependents(node: Node) -> tuple[list[Node], set[Value]]:
    """The nodes of the graph that need a node's results, each after those it reads."""
    tainted = set(node.outputs)
    found = []
    for other in node.graph.sorted_nodes():
        if other is not node and any(v in tainted for v in other.reads()):
            found.append(other)
            tainted.update(other.outputs)
    return found, tainted

"""Sinking into branches: consumers of an If whose branches differ in rank.

Such a result has no known rank, and what reads it could not be compiled. Copied into each branch,
the consumers see a known rank (tail duplication).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from sardonyx.errors import SardonyxError
from sardonyx.graph.copy import copied, copy_nodes
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value

_MAX_NODES: Final = 4000  # larger graphs are left alone: each round can double them
_ROUNDS: Final = 4  # for consecutive Ifs, one round each


def sink_into_branches(graph: Graph, infer: Callable[[Graph], None]) -> Graph | None:
    """A copy of the graph with consumers of results of unknown rank moved into the branches.

    Returns None if the copy cannot be inferred: a branch may not fit what follows it.
    """
    result = copied(graph)
    try:
        infer(result)
        # The consumers moved into a branch may include the next If.
        for _ in range(_ROUNDS):
            if not _sink_readers(result):
                break
            infer(result)
    except SardonyxError:
        return None
    return result


def _sink_readers(graph: Graph) -> bool:
    """Sink the consumers of every If whose branches differ in rank; return whether any did."""
    if sum(1 for _ in graph.all_nodes()) > _MAX_NODES:
        return False
    is_changed = False
    # `undecided_ifs` are the Ifs for which inference found results of different rank.
    for node in list(graph.scope.undecided_ifs):
        if node in node.graph.nodes and _has_differing_ranks(node):
            _sink(node)
            is_changed = True
    return is_changed


def _has_differing_ranks(node: Node) -> bool:
    """Whether a result is read whose rank is known in each branch but differs."""
    branches = node.attrs["then_branch"], node.attrs["else_branch"]
    return any(
        value.uses
        and _has_unknown_rank(value)
        and not any(_has_unknown_rank(b.outputs[i]) for b in branches)
        for i, value in enumerate(node.outputs)
    )


def _has_unknown_rank(value: Value) -> bool:
    """Whether a value is not a tensor of known rank."""
    return not isinstance(value.fact, Fact) or value.fact.shape is None


def _sink(node: Node) -> None:
    """Move all nodes that depend on an If into both of its branches."""
    graph = node.graph
    moved, dependent = _dependents(node)
    # The new If returns the graph outputs that depend on the old one.
    exits = [v for v in dict.fromkeys(graph.outputs) if v in dependent]
    read = {v: v for n in moved for v in n.reads() if v not in dependent}
    read |= {v: v for n in moved for v in _constants(n)}
    bodies = {key: node.attrs[key] for key in ("then_branch", "else_branch")}
    # In each branch, the copies read its outputs where the originals read those of the If.
    for body in bodies.values():
        copies = {**read, **dict(zip(node.outputs, body.outputs, strict=True))}
        copy_nodes(moved, body, copies)
        for value in exits:
            if value not in node.outputs:
                copies[value].name = ""  # the result of the new If has the name
        body.set_outputs([copies[v] for v in exits], [None] * len(exits))
    results = {v: Value(v.name) for v in exits}
    graph.add(node.op, node.inputs, {**node.attrs, **bodies}, [*results.values()], node.name)
    graph.set_outputs([results.get(v, v) for v in graph.outputs])
    # Consumers before producers: a node can be removed once nothing reads it.
    for original in reversed(moved):
        graph.remove(original)
    node.attrs = {}  # the new node owns its branches
    graph.remove(node)


def _constants(node: Node) -> Iterator[Value]:
    """The constants that a node or its bodies read; the copies read the same ones."""
    inside = (inner for _, body in node.subgraphs for inner in body.all_nodes())
    for reader in (node, *inside):
        yield from (v for v in reader.inputs if v is not None and v.const is not None)


def _dependents(node: Node) -> tuple[list[Node], set[Value]]:
    """The nodes that depend on a node, in topological order, and their outputs."""
    dependent = set(node.outputs)
    found = []
    for other in node.graph.sorted_nodes():
        # In topological order, one pass finds all that depend on the node.
        if other is not node and any(v in dependent for v in other.reads()):
            found.append(other)
            dependent.update(other.outputs)
    return found, dependent

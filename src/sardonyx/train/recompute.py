"""Recompute: forward nodes that run again for the backward part, so that their results can go."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from sardonyx.errors import InvalidArgument
from sardonyx.graph.graph import Graph, Node, Value

AGAIN: Final = 10  # the priority of clones: as late as their readers let them be
Choice = str | Callable[[Node], bool] | Iterable[str] | None


def chosen(choice: Choice, nodes: Sequence[Node], active: Collection[Value]) -> set[Node]:
    """The forward nodes to compute again; those that draw numbers, or have bodies, never are."""
    if choice is None:
        return set()
    if choice == "layers":
        found = _between_borders(nodes, active)
    elif isinstance(choice, str):
        raise InvalidArgument(
            f"recompute is {choice!r}, and may be 'layers', names of nodes, or a function of a node"
        )
    elif callable(choice):
        found = {node for node in nodes if choice(node)}
    else:
        found = _named(list(choice), nodes)
    return {node for node in found if node.op.is_pure and not node.op.has_bodies}


def _named(names: list[Any], nodes: Sequence[Node]) -> set[Node]:
    known = {node.name for node in nodes if node.name}
    wrong = [name for name in names if name not in known]
    if wrong:
        raise InvalidArgument(
            f"recompute names {wrong[0]!r}, and no node that the loss depends on is called so"
        )
    return {node for node in nodes if node.name in set(names)}


def _between_borders(nodes: Sequence[Node], active: Collection[Value]) -> set[Node]:
    """All nodes but those that make a border: a value that alone separates before from after.

    Only values that gradients pass through count, so that a mask which all layers read does not
    join them; nor is it computed again. What follows the last boundary is used at once.
    """
    place = {node: i for i, node in enumerate(nodes)}
    ends: dict[Value, int] = {}
    for node in nodes:
        for value in node.reads():
            if value.node in place and value in active:
                ends[value] = place[node]
    n_alive, going, borders = 0, [0] * len(nodes), []
    for i, node in enumerate(nodes):
        kept = [value for value in node.outputs if value in ends]
        for value in kept:
            going[ends[value]] += 1
        n_alive += len(kept) - going[i]
        if n_alive == 1 and len(kept) == 1:
            borders.append(i)
    chosen_borders = _spaced(borders, math.isqrt(len(nodes)))
    inner = (
        n for i, n in enumerate(nodes[: max(chosen_borders, default=0)]) if i not in chosen_borders
    )
    return {node for node in inner if any(value in active for value in node.outputs)}


def _spaced(borders: list[int], gap: int) -> set[int]:
    """Boundaries at least a gap apart: in a chain every node is one, and not all should be kept."""
    chosen_borders: set[int] = set()
    last = -1
    for i in borders:
        if i - last >= gap:
            chosen_borders.add(i)
            last = i
    return chosen_borders


def repeat(
    graph: Graph, again: Collection[Node], forward: Sequence[Node], backward: Sequence[Node]
) -> None:
    """Makes backward nodes read clones of the nodes to compute again, and clones read clones."""
    needed: set[Node] = set()
    work = list(backward)
    while work:
        for value in work.pop().reads():
            maker = value.node
            if maker is not None and maker in again and maker not in needed:
                needed.add(maker)
                work.append(maker)
    copies: dict[Value, Value] = {}
    for node in forward:
        if node in needed:
            copies.update(zip(node.outputs, _clone(graph, node, copies).outputs, strict=True))
    for node in backward:
        for slot, read in enumerate(node.inputs):
            if read is not None and read in copies:
                graph.set_input(node, slot, copies[read])


def _clone(graph: Graph, node: Node, copies: dict[Value, Value]) -> Node:
    inputs = [None if v is None else copies.get(v, v) for v in node.inputs]
    name = f"{node.name}_again" if node.name else ""
    twin = graph.add(node.op, inputs, dict(node.attrs), len(node.outputs), name)
    twin.annotations = (AGAIN, True)
    for mine, its in zip(twin.outputs, node.outputs, strict=True):
        mine.fact = its.fact
    return twin

"""Place: each node goes to the first provider that takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sardonyx.errors import NotImplemented
from sardonyx.graph.graph import Graph, Node
from sardonyx.place.provider import No, Provider, Yes


@dataclass(frozen=True, slots=True)
class Placement:
    """Where every node of a graph and of its bodies runs, and why it does not run elsewhere."""

    graph: Graph
    where: dict[Node, Provider]
    refusals: dict[
        Node, tuple[tuple[str, str], ...]
    ]  # provider and reason, for nodes that any refused


def place(graph: Graph, providers: Sequence[Provider]) -> Placement:
    """A provider for every node; an error with all the reasons where none wants it."""
    where: dict[Node, Provider] = {}
    refusals: dict[Node, tuple[tuple[str, str], ...]] = {}
    for node in graph.all_nodes():
        reasons: list[tuple[str, str]] = []
        for provider in providers:
            answer = provider.claims(node)
            if isinstance(answer, Yes):
                where[node] = provider
                break
            reasons.append((provider.name, answer.why))
        else:
            said = "; ".join(f"{name}: {why}" for name, why in reasons) or "no provider was given"
            raise NotImplemented(f"no provider takes {node.op}: {said}", node=node)
        if reasons:
            refusals[node] = tuple(reasons)
    return Placement(graph, where, refusals)


__all__ = ["No", "Placement", "Provider", "Yes", "place"]

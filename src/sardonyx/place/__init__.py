"""Place: each node goes to the first provider that takes it, and values are copied at borders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sardonyx.base.records import field, frozen
from sardonyx.errors import NotImplemented
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.place.preferences import Wishes
from sardonyx.place.provider import (
    HOST,
    DeviceProvider,
    No,
    Provider,
    Yes,
    has_device,
)

Refusals = tuple[tuple[str, str], ...]  # providers and their reasons


@frozen
class Placement:
    """Where every node of a graph and of its bodies runs, and why it does not run elsewhere."""

    graph: Graph
    where: dict[Node, Provider]
    refusals: dict[Node, Refusals]  # of nodes that any provider refused
    homes: dict[Value, str] = field(default_factory=dict)  # devices of values that leave the host

    @property
    def devices(self) -> dict[str, DeviceProvider]:
        """The providers in use that have a device of their own, by its name."""
        return {p.device: p for p in self.where.values() if has_device(p)}


def place(
    graph: Graph,
    providers: Sequence[Provider],
    wishes: Wishes | None = None,
    lower_for_host: Callable[[Graph], None] | None = None,
) -> Placement:
    """A provider for every node; an error with all the reasons where none wants it.

    A graph that is for devices so far has what they leave to the host lowered by `lower_for_host`.
    """
    placement = Placement(graph, {}, {})
    wishes = (wishes or Wishes()).bound(graph)
    _claim(placement, _ordered(graph, providers), providers, wishes)
    if lower_for_host is not None:
        from sardonyx.place.host import lower_host_parts

        on_host = [p for p in providers if not has_device(p)]
        lower_host_parts(
            placement, lower_for_host, lambda nodes: _claim(placement, nodes, on_host, wishes)
        )
    if placement.devices:
        from sardonyx.place.boundaries import settle_borders  # most sessions have no device

        settle_borders(placement)
    return placement


def _ordered(graph: Graph, providers: Sequence[Provider]) -> Iterable[Node]:
    """The nodes in the order in which providers claim them: topological if one has a device."""
    return graph.sorted_nodes() if any(map(has_device, providers)) else graph.nodes


def _claim(
    placement: Placement, nodes: Iterable[Node], providers: Sequence[Provider], wishes: Wishes
) -> None:
    for node in nodes:
        provider = _taker(placement, node, providers, wishes)
        # What runs in a body of the host's is given arrays, and must give arrays.
        inner = providers if has_device(provider) else [p for p in providers if not has_device(p)]
        for _, body in node.subgraphs:
            _claim(placement, _ordered(body, inner), inner, wishes)


def _taker(
    placement: Placement, node: Node, providers: Sequence[Provider], wishes: Wishes
) -> Provider:
    """The first provider that takes a node; what the others said is kept."""
    reasons: list[tuple[str, str]] = []
    for provider in providers:
        answer = wishes.against(node, provider) or provider.claims(node)
        if isinstance(answer, Yes):
            placement.where[node] = provider
            wishes.taken(node, provider)
            if reasons:
                placement.refusals[node] = tuple(reasons)
            return provider
        reasons.append((provider.name, answer.why))
    said = "; ".join(f"{name}: {why}" for name, why in reasons) or "no provider was given"
    raise NotImplemented(f"no provider takes {node.op}: {said}", node=node)


__all__ = [
    "HOST",
    "DeviceProvider",
    "No",
    "Placement",
    "Provider",
    "Wishes",
    "Yes",
    "has_device",
    "place",
]

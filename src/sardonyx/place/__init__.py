"""Place: assign each node to the first provider that claims it, and copy values between devices.

Providers are asked in the user's order of preference. What the host keeps of a graph for devices is
lowered for the CPU (`host`), and copies are inserted where a value crosses from one device to
another (`boundaries`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sardonyx.base.records import field, frozen
from sardonyx.errors import NotImplemented
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.place.preferences import PlacementPreferences
from sardonyx.place.provider import HOST, DeviceProvider, No, Provider, Yes, has_device

Refusals = tuple[tuple[str, str], ...]  # providers and their reasons


@frozen
class Placement:
    """The provider of every node of a graph and its bodies, and why others refused it."""

    graph: Graph
    where: dict[Node, Provider]
    refusals: dict[Node, Refusals]  # by node that some provider refused
    homes: dict[Value, str] = field(default_factory=dict)  # devices of values not on the host

    @property
    def devices(self) -> dict[str, DeviceProvider]:
        """The providers in use that have a device of their own, by device name."""
        return {p.device: p for p in self.where.values() if has_device(p)}


def place(
    graph: Graph,
    providers: Sequence[Provider],
    preferences: PlacementPreferences | None = None,
    lower_for_host: Callable[[Graph], None] | None = None,
) -> Placement:
    """Assign a provider to every node; raise with all refusals if none claims a node.

    With `lower_for_host` the graph is lowered for devices only: nodes that they leave to the host
    are passed through it before CPU providers claim them.
    """
    placement = Placement(graph, {}, {})
    preferences = (preferences or PlacementPreferences()).for_graph(graph)
    _claim(placement, _ordered(graph, providers), providers, preferences)
    if lower_for_host is not None:
        from sardonyx.place.host import lower_host_subgraphs

        on_host = [p for p in providers if not has_device(p)]
        lower_host_subgraphs(
            placement, lower_for_host, lambda nodes: _claim(placement, nodes, on_host, preferences)
        )
    if placement.devices:
        from sardonyx.place.boundaries import insert_copies  # rare: not imported otherwise

        insert_copies(placement)
    return placement


def _ordered(graph: Graph, providers: Sequence[Provider]) -> Iterable[Node]:
    """The nodes in the order in which providers claim them: topological if one has a device."""
    return graph.sorted_nodes() if any(map(has_device, providers)) else graph.nodes


def _claim(
    placement: Placement,
    nodes: Iterable[Node],
    providers: Sequence[Provider],
    preferences: PlacementPreferences,
) -> None:
    for node in nodes:
        provider = _claimant(placement, node, providers, preferences)
        # Control flow of the host passes numpy arrays into its bodies and takes arrays back.
        inner = providers if has_device(provider) else [p for p in providers if not has_device(p)]
        for _, body in node.subgraphs:
            _claim(placement, _ordered(body, inner), inner, preferences)


def _claimant(
    placement: Placement,
    node: Node,
    providers: Sequence[Provider],
    preferences: PlacementPreferences,
) -> Provider:
    """The first provider that claims a node; refusals before it are recorded."""
    reasons: list[tuple[str, str]] = []
    for provider in providers:
        answer = preferences.refusal(node, provider) or provider.claims(node)
        if isinstance(answer, Yes):
            placement.where[node] = provider
            preferences.count(node, provider)
            if reasons:
                placement.refusals[node] = tuple(reasons)
            return provider
        reasons.append((provider.name, answer.why))
    refusals = "; ".join(f"{name}: {why}" for name, why in reasons) or "no provider was given"
    raise NotImplemented(f"no provider takes {node.op}: {refusals}", node=node)


__all__ = [
    "HOST",
    "DeviceProvider",
    "No",
    "Placement",
    "PlacementPreferences",
    "Provider",
    "Yes",
    "has_device",
    "place",
]

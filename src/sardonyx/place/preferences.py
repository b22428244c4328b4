"""The user's preferences for placement: devices by node name, and memory limits of devices."""

from __future__ import annotations

from typing import Final

from sardonyx.base.records import field, frozen, mutable
from sardonyx.graph.const import Const
from sardonyx.graph.graph import Graph, Node
from sardonyx.place.provider import No, Provider, has_device

# Weights of a node up to which it follows its producers to the host: copying values to a device and
# back costs more than it gains.
_SMALL_BYTES: Final = 1 << 16
# Share of a device's memory for weights, if a model does not fit it: the rest is for activations.
_WEIGHT_SHARE: Final = 0.75
_FULL: Final = 0.9  # share of the limit from which a device counts as full


@frozen
class Assignment:
    """Assigns nodes whose names match a pattern to a provider or a kind of device."""

    pattern: str
    target: str  # lower case: a provider's name, "cpu", or the kind of a device

    def allows(self, provider: Provider) -> bool:
        """Whether a provider may have the nodes; the CPU always may, if the others refuse."""
        if not has_device(provider):
            return True
        kind = provider.device.partition(":")[0]
        return self.target in (provider.name.lower(), kind, provider.device) or (
            self.target == "gpu" and kind != "cpu"
        )


@mutable
class PlacementPreferences:
    """Assignments, of which the first match counts, and memory limits by device."""

    assignments: tuple[Assignment, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)  # bytes of weights
    totals: dict[str, int] = field(default_factory=dict)  # bytes of weights and activations
    _used: dict[str, int] = field(default_factory=dict)  # bytes of weights, by device
    _counted: set[Const] = field(default_factory=set)  # weights in `_used`
    _rejected: set[Node] = field(default_factory=set)  # for lack of memory, and their followers

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for equal preferences."""
        return self.assignments, tuple(self.limits.items()), tuple(self.totals.items())

    def for_graph(self, graph: Graph) -> PlacementPreferences:
        """Return a copy for the placement of a graph, with limits of weights from the totals."""
        limits = dict(self.limits)
        weights = _weight_bytes(graph) if self.totals else 0
        for device, total in self.totals.items():
            most = total if weights <= total else int(total * _WEIGHT_SHARE)
            limits[device] = min(most, limits.get(device, most))
        return PlacementPreferences(self.assignments, limits)

    def mark(self, graph: Graph) -> None:
        """Annotate nodes with their assignment: passes do not fuse nodes of different ones."""
        if not self.assignments:
            return
        from fnmatch import fnmatchcase  # few sessions assign nodes

        for node in graph.all_nodes():
            matching = (fnmatchcase(node.name, a.pattern) for a in self.assignments)
            node.assignment = next((i for i, matches in enumerate(matching, 1) if matches), 0)

    def refusal(self, node: Node, provider: Provider) -> No | None:
        """Return why a provider must not have a node, or None if it may."""
        if node.assignment:
            assignment = self.assignments[node.assignment - 1]
            if not assignment.allows(provider):
                target, pattern = assignment.target, assignment.pattern
                return No(f"it was assigned to {target} by the pattern {pattern}")
        if not has_device(provider) or provider.device not in self.limits:
            return None
        limit, used = self.limits[provider.device], self._used.get(provider.device, 0)
        more = sum(c.size_bytes for c in self._new(node))
        if used + more <= limit:
            is_full = used >= limit * _FULL
            is_small = more <= _SMALL_BYTES
            return self._follow(node, provider.device, is_full) if is_small else None
        self._rejected.add(node)
        return No(
            f"its weights take {_mb(more)}, and {provider.device} has {_mb(limit)} for weights, of "
            f"which {_mb(used)} are used: raise gpu_mem_limit to place it there"
        )

    def _follow(self, node: Node, device: str, is_full: bool) -> No | None:
        """Return why a node with few weights stays with rejected ones: each boundary costs copies.

        It does so if all of its producers were rejected; if the device is full, if any was.
        """
        rejected = [v.node in self._rejected for v in node.reads() if v.node is not None]
        if not rejected or not (any(rejected) if is_full else all(rejected)):
            return None
        self._rejected.add(node)
        return No(f"it reads results of nodes that did not fit on {device}")

    def count(self, node: Node, provider: Provider) -> None:
        """Count the weights of a node that was placed on a device."""
        if has_device(provider) and provider.device in self.limits:
            new = self._new(node)
            used = self._used.get(provider.device, 0)
            self._used[provider.device] = used + sum(c.size_bytes for c in new)
            self._counted |= new

    def _new(self, node: Node) -> set[Const]:
        read = {v.const for v in node.inputs if v is not None and v.const is not None}
        return read - self._counted


def _weight_bytes(graph: Graph) -> int:
    read = (v for n in graph.all_nodes() for v in n.inputs if v is not None)
    return sum(c.size_bytes for c in {v.const for v in read if v.const is not None})


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"

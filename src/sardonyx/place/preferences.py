"""What a user wants of placement: nodes by name, and how much memory a device may take."""

from __future__ import annotations

from typing import Final

from sardonyx.base.records import field, frozen, mutable
from sardonyx.graph.const import Const
from sardonyx.graph.graph import Graph, Node
from sardonyx.place.provider import No, Provider, has_device

_LITTLE_BYTES: Final = 1 << 16  # of weights, for which values are not worth copying
# Of a device's memory, where a model is too large for it: the rest is for what runs make.
_FOR_WEIGHTS: Final = 0.75
_FULL: Final = 0.9  # of what weights may take


@frozen
class Assignment:
    """Nodes whose names match a pattern belong on providers of a name or a kind of device."""

    pattern: str
    target: str  # in small letters: a provider's name, "cpu", or the kind of a device

    def allows(self, provider: Provider) -> bool:
        """Whether a provider is meant; the CPU takes what those that are meant refuse."""
        if not has_device(provider):
            return True
        kind = provider.device.partition(":")[0]
        return self.target in (provider.name.lower(), kind, provider.device) or (
            self.target == "gpu" and kind != "cpu"
        )


@mutable
class PlacementPreferences:
    """Assignments, the first that matches counts, and limits in bytes by device."""

    assignments: tuple[Assignment, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)  # of weights
    totals: dict[str, int] = field(default_factory=dict)  # of weights and of what runs make
    _used: dict[str, int] = field(default_factory=dict)
    _seen: set[Const] = field(default_factory=set)
    _left: set[Node] = field(default_factory=set)  # for want of memory, and what follows them

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal preferences."""
        return self.assignments, tuple(self.limits.items()), tuple(self.totals.items())

    def bound(self, graph: Graph) -> PlacementPreferences:
        """The same for one placement, with nothing taken yet."""
        limits = dict(self.limits)
        weights = _weight_bytes(graph) if self.totals else 0
        for device, total in self.totals.items():
            most = total if weights <= total else int(total * _FOR_WEIGHTS)
            limits[device] = min(most, limits.get(device, most))
        return PlacementPreferences(self.assignments, limits)

    def mark(self, graph: Graph) -> None:
        """Tells nodes which assignment is theirs, so that passes keep those of others apart."""
        if not self.assignments:
            return
        from fnmatch import fnmatchcase  # few sessions assign nodes

        for node in graph.all_nodes():
            matching = (fnmatchcase(node.name, a.pattern) for a in self.assignments)
            node.wish = next((i for i, matches in enumerate(matching, 1) if matches), 0)

    def against(self, node: Node, provider: Provider) -> No | None:
        """Why a provider should not have a node; None if nothing speaks against it."""
        if node.wish:
            found = self.assignments[node.wish - 1]
            if not found.allows(provider):
                return No(f"it was assigned to {found.target} by the pattern {found.pattern}")
        if not has_device(provider) or provider.device not in self.limits:
            return None
        limit, used = self.limits[provider.device], self._used.get(provider.device, 0)
        more = sum(c.size_bytes for c in self._new(node))
        if used + more <= limit:
            is_full = used >= limit * _FULL
            is_little = more <= _LITTLE_BYTES
            return self._following(node, provider.device, is_full) if is_little else None
        self._left.add(node)
        return No(
            f"its weights take {_mb(more)}, and {provider.device} has {_mb(limit)} for weights, "
            "most of which are taken: raise gpu_mem_limit to have it there"
        )

    def _following(self, node: Node, device: str, is_full: bool) -> No | None:
        """Why a node with few weights stays beside what did not fit: each border costs copies."""
        left = [v.node in self._left for v in node.reads() if v.node is not None]
        if not left or not (any(left) if is_full else all(left)):
            return None
        self._left.add(node)
        return No(f"it reads results of nodes that did not fit on {device}")

    def taken(self, node: Node, provider: Provider) -> None:
        """Counts the weights of a node that a device has got."""
        if has_device(provider) and provider.device in self.limits:
            news = self._new(node)
            used = self._used.get(provider.device, 0)
            self._used[provider.device] = used + sum(c.size_bytes for c in news)
            self._seen |= news

    def _new(self, node: Node) -> set[Const]:
        read = {v.const for v in node.inputs if v is not None and v.const is not None}
        return read - self._seen


def _weight_bytes(graph: Graph) -> int:
    read = (v for n in graph.all_nodes() for v in n.inputs if v is not None)
    return sum(c.size_bytes for c in {v.const for v in read if v.const is not None})


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"

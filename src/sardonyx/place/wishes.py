"""What a user wants of placement: nodes by name, and how much memory a device may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from sardonyx.graph.graph import Node
from sardonyx.place.provider import No, Provider, has_device
from sardonyx.weights.const import Const


@dataclass(frozen=True, slots=True)
class Assignment:
    """Nodes whose names match a pattern belong on providers of a name or a kind of device."""

    pattern: str
    target: str  # in small letters: a provider's name, "cpu", or the kind of a device

    def allows(self, provider: Provider) -> bool:
        """Whether a provider is meant."""
        if not has_device(provider):
            return self.target == "cpu"
        kind = provider.device.partition(":")[0]
        return self.target in (provider.name.lower(), kind, provider.device) or (
            self.target == "gpu" and kind != "cpu"
        )


@dataclass(slots=True)
class Wishes:
    """Assignments, the first that matches counts, and limits in bytes of weights by device."""

    assignments: tuple[Assignment, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)
    _used: dict[str, int] = field(default_factory=dict)
    _seen: set[Const] = field(default_factory=set)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal wishes."""
        return self.assignments, tuple(sorted(self.limits.items()))

    def bound(self) -> Wishes:
        """The same for one placement, with nothing taken yet."""
        return Wishes(self.assignments, self.limits)

    def against(self, node: Node, provider: Provider) -> No | None:
        """Why a provider should not have a node; None if nothing speaks against it."""
        found = self._assignment(node)
        if found is not None and not found.allows(provider):
            return No(f"{node.name} was assigned to {found.target} by the pattern {found.pattern}")
        if not has_device(provider) or provider.device not in self.limits:
            return None
        limit, used = self.limits[provider.device], self._used.get(provider.device, 0)
        more = sum(c.size_bytes for c in self._new(node))
        if used + more <= limit:
            return None
        return No(
            f"its weights need {_mb(more)} more on {provider.device}, where {_mb(used)} of "
            f"{_mb(limit)} are taken"
        )

    def taken(self, node: Node, provider: Provider) -> None:
        """Counts the weights of a node that a device has got."""
        if has_device(provider) and provider.device in self.limits:
            news = self._new(node)
            used = self._used.get(provider.device, 0)
            self._used[provider.device] = used + sum(c.size_bytes for c in news)
            self._seen |= news

    def _assignment(self, node: Node) -> Assignment | None:
        if not self.assignments or not node.name:
            return None
        return next((a for a in self.assignments if fnmatchcase(node.name, a.pattern)), None)

    def _new(self, node: Node) -> set[Const]:
        read = {v.const for v in node.inputs if v is not None and v.const is not None}
        return read - self._seen


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"

"""Segments that a provider with a device of its own runs as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sardonyx.graph.graph import Node
from sardonyx.graph.guard import Guard
from sardonyx.place.provider import RegionProgram


@dataclass(frozen=True, slots=True)
class RegionSegment:
    """A region over slots of the program's frame."""

    nodes: tuple[Node, ...]
    program: RegionProgram
    provider: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]  # slots that nobody reads after this
    guards: tuple[Guard, ...]  # on sizes that earlier segments settle
    binds: tuple[tuple[int, int, str], ...]  # (output, axis, name): sizes known once this has run

    @property
    def node(self) -> Node:
        """One of its nodes, for messages."""
        return self.nodes[0]

    @property
    def kernel(self) -> str:
        """What runs it, for people."""
        return self.program.kernel

    def prepare(self, check: Callable[[], None]) -> None:
        """Brings its constants to the device."""
        self.program.prepare(check)

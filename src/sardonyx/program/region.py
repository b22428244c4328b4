"""Segments that a provider with a device of its own runs as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Node
from sardonyx.graph.guard import Guard
from sardonyx.place.provider import RegionProgram
from sardonyx.program.expected import Expected

if TYPE_CHECKING:
    from sardonyx.program.program import Run


@frozen
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
    expects: tuple[Expected, ...]  # of its outputs

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

    def __call__(self, values: Sequence[Any], run: Run) -> Sequence[Any]:
        """Its outputs, in their places where there are any."""
        places = [run.into.get(slot) for slot in self.outputs]
        in_place = getattr(self.program, "in_place", None) if run.shared else None
        if in_place is None:
            return self.program(values, run, places)
        numbers = {slot: i for i, slot in enumerate(self.inputs)}
        shared = {
            o: numbers[there]
            for o, slot in enumerate(self.outputs)
            if (there := run.shared.get(slot)) in numbers
        }
        made: Sequence[Any] = in_place(values, run, places, shared)
        return made

    def keeps(self, value: Any) -> bool:
        """Whether a value lies in memory of its own; where nobody knows it may."""
        keeps = getattr(self.program, "keeps", None)
        return keeps is None or bool(keeps(value))

    def release_graphs(self, graph_id: int) -> None:
        """Forgets what it recorded for runs of an id, if it records any."""
        release = getattr(self.program, "release_graphs", None)
        if release is not None:
            release(graph_id)

"""Region segments: nodes that a provider with a device runs as a whole."""

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
    frees: tuple[int, ...]  # slots whose last reader it is
    guards: tuple[Guard, ...]  # on sizes that earlier segments resolved
    binds: tuple[tuple[int, int, str], ...]  # (output, axis, name): dims that its outputs resolve
    expects: tuple[Expected, ...]  # of its outputs

    @property
    def node(self) -> Node:
        """Its first node, for messages."""
        return self.nodes[0]

    @property
    def kernel(self) -> str:
        """A name of its implementation, for reports."""
        return self.program.kernel

    def prepare(self, check: Callable[[], None]) -> None:
        """Load its constants to the device; `check` may raise to cancel."""
        self.program.prepare(check)

    def __call__(self, values: Sequence[Any], run: Run) -> Sequence[Any]:
        """Run it; outputs are written to the `run.output_buffers`, if any."""
        buffers = [run.output_buffers.get(slot) for slot in self.outputs]
        in_place = getattr(self.program, "in_place", None) if run.shared else None
        if in_place is None:
            return self.program(values, run, buffers)
        # Pairs of slots become pairs of positions: (output, input) that are to alias.
        numbers = {slot: i for i, slot in enumerate(self.inputs)}
        shared = {
            o: numbers[source]
            for o, slot in enumerate(self.outputs)
            if (source := run.shared.get(slot)) in numbers
        }
        outputs: Sequence[Any] = in_place(values, run, buffers, shared)
        return outputs

    def aliases_persistent_memory(self, value: Any) -> bool:
        """Whether a value is in memory that later runs reuse; True if the provider cannot tell."""
        aliases = getattr(self.program, "aliases_persistent_memory", None)
        return aliases is None or bool(aliases(value))

    def release_graphs(self, graph_id: int) -> None:
        """Release the CUDA graphs recorded for an id, if it records any."""
        release = getattr(self.program, "release_graphs", None)
        if release is not None:
            release(graph_id)

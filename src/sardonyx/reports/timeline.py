"""The memory timeline of a run: each tensor with its size, offset and live range in steps.

`simulate` recomputes the peak from the tensors alone and finds overlaps; `new_timeline` compares
that with what the memory plan claims.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, Literal

from sardonyx.base.records import frozen
from sardonyx.errors import InternalError
from sardonyx.memory.offsets import ALIGN

# A "part" aliases the bytes of another tensor, which is the one that counts: the Concat output
# that it is written into, or an output block that is still unused while the part lives.
Kind = Literal["value", "part", "scratch", "output", "input"]

OWN: Final = -1  # the offset of a tensor in a block of its own, outside of any arena


@frozen
class KernelCall:
    """One kernel call."""

    name: str  # of its node
    op: str
    kernel: str
    part: int  # index of its segment part, which has one arena; -1: none


@frozen
class Tensor:
    """Bytes with a live range [start, end] in steps."""

    name: str
    maker: str  # the node that produces it; empty for inputs
    kind: Kind
    bytes: int
    made: int  # the step that produces it; its bytes may be live before
    start: int
    end: int
    offset: int  # in the arena of its part
    part: int
    dtype: str
    shape: tuple[int, ...] | None
    idle: int  # the longest run of steps that neither read nor write it


@frozen
class Arena:
    """The arena of one segment part."""

    bytes: int
    least_bytes: int  # the lower bound: the most bytes live in any of its steps


@frozen
class Timeline:
    """The memory of a run from its first to its last step, for concrete sizes.

    Each native segment part has an arena; values that cross parts and Python steps are in blocks of
    their own. Inputs and outputs belong to the caller and are counted separately.
    """

    order: str
    steps: tuple[KernelCall, ...]
    tensors: tuple[Tensor, ...]
    arenas: tuple[Arena, ...]  # by part
    arena_bytes: int  # the largest of them
    peak_bytes: int  # arena and blocks of the worst step, by simulation
    lower_bound: int  # the most bytes live in any one step
    peak_step: int  # the step of the lower bound
    output_bytes: int
    local_bytes: int  # additional memory of each thread
    needs: tuple[int, ...]  # live bytes, by step

    @property
    def scratch_bytes(self) -> int:
        """The largest scratch of any one step."""
        return max((t.bytes for t in self.tensors if t.kind == "scratch"), default=0)

    def total_bytes(self, threads: int) -> int:
        """Return the native memory of a run, as sardonyx.max_arena_bytes counts it."""
        # The block of thread-local memory has ALIGN spare bytes to align its start.
        return self.peak_bytes + self.output_bytes + threads * self.local_bytes + ALIGN

    def alive(self, step: int) -> list[Tensor]:
        """Return the tensors of the run that are live in a step, the largest first."""
        live = [t for t in self.tensors if t.start <= step <= t.end and is_internal(t)]
        return sorted(live, key=lambda t: (-t.bytes, t.start, t.name))


@frozen
class Simulation:
    """The result of `simulate`."""

    reach: tuple[int, ...]  # by part: the end of the highest byte in use
    needs: tuple[int, ...]  # by step: live bytes
    blocks: tuple[int, ...]  # by step: live bytes outside of arenas


def is_internal(tensor: Tensor) -> bool:
    """Return whether a tensor is the run's own memory: neither an input nor an output."""
    return tensor.kind in ("value", "scratch") and tensor.bytes > 0


def new_timeline(
    order: str,
    steps: list[KernelCall],
    tensors: list[Tensor],
    arenas: list[Arena],
    local_bytes: int,
) -> Timeline:
    """Return a timeline; raise an error if its tensors contradict the planned arenas."""
    simulation = simulate(tensors, len(steps), len(arenas))
    alive = [0] * len(arenas)
    for step, need, blocks in zip(steps, simulation.needs, simulation.blocks, strict=True):
        if step.part >= 0:
            alive[step.part] = max(alive[step.part], need - blocks)
    simulated = [Arena(*pair) for pair in zip(simulation.reach, alive, strict=True)]
    if simulated != arenas:
        raise InternalError(f"the plan says {arenas}, and its tensors need {simulated}")
    held = [simulation.reach[s.part] if s.part >= 0 else 0 for s in steps]
    worst = max(simulation.needs, default=0)
    return Timeline(
        order=order,
        steps=tuple(steps),
        tensors=tuple(tensors),
        arenas=tuple(arenas),
        arena_bytes=max((a.bytes for a in arenas), default=0),
        peak_bytes=max(map(sum, zip(held, simulation.blocks, strict=True)), default=0),
        lower_bound=worst,
        peak_step=simulation.needs.index(worst) if steps else 0,
        output_bytes=sum(t.bytes for t in tensors if t.kind == "output"),
        local_bytes=local_bytes,
        needs=simulation.needs,
    )


def simulate(tensors: Iterable[Tensor], n_steps: int, n_parts: int) -> Simulation:
    """Replay the live ranges step by step, independently of how the offsets were assigned.

    Two tensors that share bytes in a step are an error, unless one is computed in place over all
    bytes of another whose last step this is.
    """
    begins: list[list[Tensor]] = [[] for _ in range(n_steps)]
    for tensor in filter(is_internal, tensors):
        begins[tensor.start].append(tensor)
    reach, needs, blocks = [0] * n_parts, [0] * n_steps, [0] * n_steps
    arena = _LiveBytes()
    outside: list[Tensor] = []
    for step, new in enumerate(begins):
        arena.drop_before(step)
        outside = [t for t in outside if t.end >= step]
        for tensor in new:
            if tensor.offset == OWN:
                outside.append(tensor)
                continue
            arena.add(tensor, step)
            reach[tensor.part] = max(reach[tensor.part], tensor.offset + tensor.bytes)
        blocks[step] = sum(t.bytes for t in outside)
        needs[step] = blocks[step] + arena.bytes
    return Simulation(tuple(reach), tuple(needs), tuple(blocks))


class _LiveBytes:
    """The live tensors of all arenas at one step, sorted by part and offset."""

    def __init__(self) -> None:
        self._alive: list[tuple[int, int, Tensor]] = []  # part, offset
        self.bytes = 0

    def drop_before(self, step: int) -> None:
        """Remove the tensors whose last step is before this one."""
        self._alive = [entry for entry in self._alive if entry[2].end >= step]
        self.bytes = sum(entry[2].bytes for entry in self._alive)

    def add(self, tensor: Tensor, step: int) -> None:
        """Insert a tensor; raise an error if it overlaps a neighbour."""
        position = tensor.part, tensor.offset
        at = bisect.bisect_left(self._alive, position, key=lambda entry: entry[:2])
        if at < len(self._alive) and takes_over(tensor, self._alive[at][2]):
            self._alive[at] = (*position, tensor)
            return
        # The live tensors are disjoint, so only the nearest two can overlap the new one.
        for part, offset, other in self._alive[max(0, at - 1) : at + 1]:
            is_after = tensor.offset >= offset + other.bytes
            if part == tensor.part and not is_after and offset < tensor.offset + tensor.bytes:
                raise InternalError(f"{tensor.name} and {other.name} share bytes in step {step}")
        self._alive.insert(at, (*position, tensor))
        self.bytes += tensor.bytes


def takes_over(new: Tensor, old: Tensor) -> bool:
    """Return whether a tensor is computed in place over another in the other's last step."""
    return (
        (new.part, new.offset, new.bytes) == (old.part, old.offset, old.bytes)
        and new.start == old.end
        and old.start < new.start
        and new.kind == old.kind == "value"
    )

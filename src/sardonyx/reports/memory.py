"""What a run takes: each tensor with its bytes, its place and the steps that it lives through."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from sardonyx.base.records import frozen
from sardonyx.errors import InternalError
from sardonyx.memory.offsets import ALIGN, ArenaLayout, LiveRange, check_offsets

# A part lies in the bytes of another tensor, which counts: of the whole that it is joined to, or of
# an output that is made when it is gone.
Kind = Literal["value", "part", "scratch", "output", "input"]

OWN: Final = -1  # the offset of what lies in a block of its own, outside of any arena


@frozen
class Step:
    """One call of a kernel."""

    name: str  # of its node
    op: str
    kernel: str
    part: int  # the arena that it works in; -1: none


@frozen
class Tensor:
    """Bytes that live from one step to another, both included."""

    name: str
    maker: str  # the node that makes it; empty for inputs
    kind: Kind
    bytes: int
    made: int  # the step that makes it; its place may be needed before
    start: int
    end: int
    offset: int  # in the arena of its part
    part: int
    dtype: str
    shape: tuple[int, ...] | None
    idle: int  # the most steps in a row in which it only waits


@frozen
class Arena:
    """What is said of the memory of one part."""

    bytes: int
    least_bytes: int  # the most that is alive in any of its steps


@frozen
class Timeline:
    """A run from its first to its last step, for given sizes.

    Arenas belong to parts of a program, most of which have one; what passes between parts and steps
    in Python are blocks of their own. Inputs and outputs are the caller's and count by themselves.
    """

    order: str
    steps: tuple[Step, ...]
    tensors: tuple[Tensor, ...]
    arenas: tuple[Arena, ...]  # by part
    arena_bytes: int  # the largest of them
    peak_bytes: int  # arena and blocks of the worst step, by simulation
    lower_bound: int  # the most that is alive in any one step
    peak_step: int  # where that is
    output_bytes: int
    local_bytes: int  # that each thread takes besides
    needs: tuple[int, ...]  # bytes alive, by step

    @property
    def scratch_bytes(self) -> int:
        """The most scratch of any one step."""
        return max((t.bytes for t in self.tensors if t.kind == "scratch"), default=0)

    def total_bytes(self, threads: int) -> int:
        """All that native code takes for a run, as the bound on a run counts it."""
        # A block has as much to spare as aligning what threads work in may take.
        return self.peak_bytes + self.output_bytes + threads * self.local_bytes + ALIGN

    def alive(self, step: int) -> list[Tensor]:
        """What a step holds in memory that is the run's own, the largest first."""
        found = [t for t in self.tensors if t.start <= step <= t.end and counts(t)]
        return sorted(found, key=lambda t: (-t.bytes, t.start, t.name))


@frozen
class Simulated:
    """What a walk over all steps finds."""

    reach: tuple[int, ...]  # by part: the end of the highest byte in use
    needs: tuple[int, ...]  # by step: bytes alive
    blocks: tuple[int, ...]  # by step: those among them that are outside of arenas


def counts(tensor: Tensor) -> bool:
    """Whether bytes are the run's own: neither fed nor handed out."""
    return tensor.kind in ("value", "scratch") and tensor.bytes > 0


def finished(
    order: str,
    steps: list[Step],
    tensors: list[Tensor],
    arenas: list[Arena],
    local_bytes: int,
) -> Timeline:
    """A timeline with everything that follows from its tensors, which must bear out the arenas."""
    seen = simulate(tensors, len(steps), len(arenas))
    alive = [0] * len(arenas)
    for step, need, blocks in zip(steps, seen.needs, seen.blocks, strict=True):
        if step.part >= 0:
            alive[step.part] = max(alive[step.part], need - blocks)
    found = [Arena(*pair) for pair in zip(seen.reach, alive, strict=True)]
    if found != arenas:
        raise InternalError(f"the plan says {arenas}, and its tensors take {found}")
    held = [seen.reach[s.part] if s.part >= 0 else 0 for s in steps]
    worst = max(seen.needs, default=0)
    return Timeline(
        order=order,
        steps=tuple(steps),
        tensors=tuple(tensors),
        arenas=tuple(arenas),
        arena_bytes=max((a.bytes for a in arenas), default=0),
        peak_bytes=max(map(sum, zip(held, seen.blocks, strict=True)), default=0),
        lower_bound=worst,
        peak_step=seen.needs.index(worst) if steps else 0,
        output_bytes=sum(t.bytes for t in tensors if t.kind == "output"),
        local_bytes=local_bytes,
        needs=seen.needs,
    )


def simulate(tensors: Iterable[Tensor], n_steps: int, n_parts: int) -> Simulated:
    """Walks over the steps, knowing nothing of how offsets were found.

    Bytes that two tensors share in a step are an error, unless one takes over the whole place of
    another which that step is the last to need.
    """
    begins: list[list[Tensor]] = [[] for _ in range(n_steps)]
    for tensor in filter(counts, tensors):
        begins[tensor.start].append(tensor)
    reach, needs, blocks = [0] * n_parts, [0] * n_steps, [0] * n_steps
    arena = _Arena()
    outside: list[Tensor] = []
    for step, new in enumerate(begins):
        arena.forget(step)
        outside = [t for t in outside if t.end >= step]
        for tensor in new:
            if tensor.offset == OWN:
                outside.append(tensor)
                continue
            arena.add(tensor, step)
            reach[tensor.part] = max(reach[tensor.part], tensor.offset + tensor.bytes)
        blocks[step] = sum(t.bytes for t in outside)
        needs[step] = blocks[step] + arena.bytes
    return Simulated(tuple(reach), tuple(needs), tuple(blocks))


class _Arena:
    """The bytes in use at one step, by place."""

    def __init__(self) -> None:
        self._alive: list[tuple[int, int, Tensor]] = []  # part, offset
        self.bytes = 0

    def forget(self, step: int) -> None:
        """Drops what no step from this one on needs."""
        self._alive = [entry for entry in self._alive if entry[2].end >= step]
        self.bytes = sum(entry[2].bytes for entry in self._alive)

    def add(self, tensor: Tensor, step: int) -> None:
        """Puts a tensor in its place."""
        place = tensor.part, tensor.offset
        at = bisect.bisect_left(self._alive, place, key=lambda entry: entry[:2])
        if at < len(self._alive):
            there = self._alive[at][2]
            if takes_over(tensor, there):
                self._alive[at] = (*place, tensor)
                return
            if there.part == tensor.part and there.offset < tensor.offset + tensor.bytes:
                raise _overlap(tensor, there, step)
        if at > 0:
            below = self._alive[at - 1][2]
            if below.part == tensor.part and below.offset + below.bytes > tensor.offset:
                raise _overlap(tensor, below, step)
        self._alive.insert(at, (*place, tensor))
        self.bytes += tensor.bytes


def _overlap(a: Tensor, b: Tensor, step: int) -> InternalError:
    return InternalError(f"{a.name} and {b.name} share bytes in step {step}")


def takes_over(new: Tensor, old: Tensor) -> bool:
    """Whether a tensor is made in the place of another that nobody needs any more."""
    return (
        (new.part, new.offset, new.bytes) == (old.part, old.offset, old.bytes)
        and new.start == old.end
        and old.start < new.start
        and new.kind == old.kind == "value"
    )


def prove(timeline: Timeline) -> None:
    """Holds a timeline against the checker of placements, which compares every two lives."""
    for part, arena in enumerate(timeline.arenas):
        lives: list[LiveRange] = []
        offsets: dict[int, int] = {}
        for number, chain in enumerate(_chains(timeline.tensors, part)):
            first, last = chain[0], chain[-1]
            lives.append(LiveRange(number, first.bytes, first.start, last.end))
            offsets[number] = first.offset
        check_offsets(lives, ArenaLayout(offsets, arena.bytes))


def _chains(tensors: Iterable[Tensor], part: int) -> Iterator[list[Tensor]]:
    """Tensors of an arena; those that take over each other's place are one."""
    chains: dict[tuple[int, int], list[list[Tensor]]] = {}
    inside = (t for t in tensors if counts(t) and t.part == part and t.offset != OWN)
    for tensor in sorted(inside, key=lambda t: (t.start, t.end)):
        at_place = chains.setdefault((tensor.offset, tensor.bytes), [])
        chain = next((c for c in at_place if takes_over(tensor, c[-1])), None)
        if chain is None:
            at_place.append([tensor])
        else:
            chain.append(tensor)
    for at_place in chains.values():
        yield from at_place

"""What compiling makes: segments over numbered slots; their nodes serve messages and traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sardonyx.graph.fact import AnyFact
from sardonyx.graph.graph import Node
from sardonyx.graph.guard import Guard
from sardonyx.memory import Plan
from sardonyx.place.provider import StepCall
from sardonyx.weights.const import Const

ABSENT = -1  # the slot of an optional input that is not given


@dataclass(frozen=True, slots=True)
class PythonSegment:
    """One Python call: a numpy reference, a control-flow node, a region of another library."""

    node: Node
    call: StepCall
    kernel: str
    provider: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]  # slots that nobody reads after this
    guards: tuple[Guard, ...]  # on sizes that earlier segments settle
    binds: tuple[tuple[int, int, str], ...]  # (output, axis, name): sizes known once this has run


Segment = PythonSegment


@dataclass(frozen=True, slots=True)
class Input:
    """A slot that a caller fills, and the sizes that its shape gives."""

    name: str
    slot: int
    fact: AnyFact
    sizes: tuple[tuple[int, str], ...]  # (axis, name) of dims that are one name
    fixed: tuple[tuple[int, int], ...]  # (axis, size) of dims that are a number
    default: Const | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A slot that a caller gets back."""

    name: str
    slot: int
    fact: AnyFact


@dataclass(frozen=True, slots=True)
class Program:
    """Segments over a frame of slots, with everything that binding and running need."""

    segments: tuple[Segment, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    constants: tuple[tuple[int, Const], ...]
    captures: tuple[tuple[int, int], ...]  # (outer slot, own slot), for bodies
    guards: tuple[Guard, ...]  # on sizes that the inputs give
    n_slots: int
    plan: Plan
    _template: list[Any] = field(default_factory=list)

    def frame(self) -> list[Any]:
        """A new frame with the constants in it, which are read from their source the first time."""
        if not self._template:
            template: list[Any] = [None] * (self.n_slots + 1)  # the last slot stays None: ABSENT
            for slot, const in self.constants:
                template[slot] = const.read()
            self._template[:] = template
        return self._template.copy()

    @property
    def python_steps(self) -> int:
        """How many segments run in Python."""
        return len(self.segments)


@dataclass(slots=True)
class Run:
    """One run of a program: its frame, the sizes bound so far, how a user may stop or watch it."""

    dims: dict[str, int]
    frame: list[Any]
    check: Callable[[], None]  # raises when the user ended the run
    on_step: Callable[[Segment, Run, float], None] | None = (
        None  # for profiles: called after each step
    )

"""What compiling makes: segments over numbered slots; their nodes serve messages and traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sardonyx._native import BlockPool, Outcome, Stop
from sardonyx.base.records import field, frozen, mutable
from sardonyx.graph.const import Const
from sardonyx.graph.fact import AnyFact
from sardonyx.graph.graph import Node
from sardonyx.graph.guard import Guard
from sardonyx.memory import LifetimePlan
from sardonyx.memory.limit import DeviceLimit
from sardonyx.place.provider import HOST, DeviceProvider, StepCall
from sardonyx.program.expected import Expected
from sardonyx.program.native import NativeSegment, RunSettings, Times
from sardonyx.program.region import RegionSegment
from sardonyx.weights.layouts import Forms, Want, Wanted

ABSENT = -1  # the slot of an optional input that is not given


@frozen
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
    expects: tuple[Expected, ...]  # of its outputs


Segment = PythonSegment | NativeSegment | RegionSegment


@frozen
class Input:
    """A slot that a caller fills, and the sizes that its shape gives."""

    name: str
    slot: int
    fact: AnyFact
    sizes: tuple[tuple[int, str], ...]  # (axis, name) of dims that are one name
    default: Const | None = None
    device: str = HOST


@frozen
class Output:
    """A slot that a caller gets back."""

    name: str
    slot: int
    fact: AnyFact
    device: str = HOST
    unrun: AnyFact | None = None  # of a body: what it stands for where the body never ran


@frozen
class FastPath:
    """A run as one native call: outputs as a list, or how it failed.

    None, before anything has run, is the answer to a feed that needs the checked path: that of
    `feeds` and `run`.
    """

    segment: NativeSegment
    call: Callable[[dict[Any, Any]], list[Any] | Outcome | None]
    # The same with an array for each output, or None, in which it then lies if it can.
    call_into: Callable[[dict[Any, Any], list[Any] | None], list[Any] | Outcome | None] | None = (
        None
    )


@frozen
class Program:
    """Segments over a frame of slots, with everything that binding and running need."""

    segments: tuple[Segment, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    constants: tuple[tuple[int, Const], ...]
    captures: tuple[tuple[int, int], ...]  # (outer slot, own slot), for bodies
    guards: tuple[Guard, ...]  # on sizes that the inputs give
    expects: tuple[Expected, ...]  # of the inputs of a body; those of the model are checked as fed
    closing: tuple[Guard, ...]  # on sizes that the last segment settles
    n_slots: int
    plan: LifetimePlan
    bodies: tuple[Program, ...]  # those of its control flow
    forms: Forms
    devices: Mapping[str, DeviceProvider] = field(default_factory=dict)  # by name
    limits: tuple[DeviceLimit, ...] = ()  # of the memory there
    _template: list[Any] = field(default_factory=list)

    def frame(self) -> list[Any]:
        """A new frame with the constants in it, which are read from their source the first time."""
        if not self._template:
            template: list[Any] = [None] * (self.n_slots + 1)  # the last slot stays None: ABSENT
            for slot, const in self.constants:
                template[slot] = self.forms.array(Want(const))
            self._template[:] = template
        return self._template.copy()

    def prepare(self, settings: RunSettings, pool: BlockPool | None = None) -> None:
        """Brings the weights of native segments into the form that kernels read."""
        pool = pool or BlockPool(settings.keeps)
        for segment in self.segments:
            if isinstance(segment, NativeSegment):
                segment.prepare(self.forms, settings, pool)
            elif isinstance(segment, RegionSegment):
                segment.prepare(self.forms.check)
        for body in self.bodies:
            body.prepare(settings, pool)

    def wants(self, wanted: Wanted) -> None:
        """Asks for every form of a constant that a run reads, and makes none."""
        for segment in self.segments:
            if isinstance(segment, NativeSegment):
                for want in segment.wants():
                    wanted.address(want)
        for _, const in self.constants:
            wanted.address(Want(const))
        for body in self.bodies:
            body.wants(wanted)

    def on_host(self, number: int, result: Any) -> Any:
        """An output's value as an array, wherever it was made."""
        device = self.outputs[number].device
        return result if device == HOST or result is None else self.devices[device].to_host(result)

    def keeps(self, value: Any) -> bool:
        """Whether a value on a device lies in memory that segments read or write in later runs."""
        regions = (s for s in self.segments if isinstance(s, RegionSegment))
        return any(s.keeps(value) for s in regions) or any(b.keeps(value) for b in self.bodies)

    def release_graphs(self, graph_id: int) -> None:
        """Forgets what regions recorded for runs of an id."""
        for segment in self.segments:
            if isinstance(segment, RegionSegment):
                segment.release_graphs(graph_id)
        for body in self.bodies:
            body.release_graphs(graph_id)

    @property
    def fast_path(self) -> FastPath | None:
        """A run as one native call, where that is all there is to it, once it is prepared."""
        segment = self._only_segment
        runnable = None if segment is None else segment.runnable
        if segment is None or runnable is None:
            return None
        n = len(self.outputs)
        if len(segment.outputs) == n:
            return FastPath(segment, runnable.run_fast, runnable.run_fast_into)
        run_fast = runnable.run_fast

        def call(feed: dict[Any, Any]) -> list[Any] | Outcome | None:
            made = run_fast(feed)
            return made[:n] if isinstance(made, list) else made

        return FastPath(segment, call)

    @property
    def _only_segment(self) -> NativeSegment | None:
        """The native segment that is all there is to a run, from inputs to outputs.

        Behind those it may give what bodies read.
        """
        if len(self.segments) != 1 or not isinstance(self.segments[0], NativeSegment):
            return None
        segment = self.segments[0]
        same_inputs = {i.slot for i in self.inputs} == set(segment.inputs)
        slots = tuple(o.slot for o in self.outputs)
        if not same_inputs or slots != segment.outputs[: len(slots)]:
            return None
        return segment

    def nodes(self) -> Iterator[tuple[Node, str, str]]:
        """Each node with its provider and kernel, those of bodies left out."""
        for segment in self.segments:
            if isinstance(segment, PythonSegment):
                yield segment.node, segment.provider, segment.kernel
            elif isinstance(segment, RegionSegment):
                yield from ((n, segment.provider, segment.kernel) for n in segment.nodes)
            else:
                yield from ((node, "cpu", row) for node, row in segment.nodes)

    def groups(self) -> Iterator[tuple[str, tuple[Node, ...]]]:
        """Providers with nodes that they run: those of a region together, others one by one."""
        for segment in self.segments:
            if isinstance(segment, RegionSegment):
                yield segment.provider, segment.nodes
            elif isinstance(segment, PythonSegment):
                yield segment.provider, (segment.node,)
            else:
                yield from (("cpu", (node,)) for node, _ in segment.nodes)

    @property
    def python_steps(self) -> int:
        """How many steps run in Python, those of bodies included."""
        own = sum(isinstance(s, PythonSegment) for s in self.segments)
        return own + sum(body.python_steps for body in self.bodies)


@mutable
class Run:
    """One run of a program: its frame, the sizes bound so far, how a user may stop or watch it."""

    dims: dict[str, int]
    frame: list[Any]
    check: Callable[[], None]  # raises when the user ended the run
    settings: RunSettings = field(default_factory=RunSettings)
    stop: Stop | None = None  # the flag that `check` looks at, for native code
    pool: BlockPool | None = None  # for segments that are prepared by this run
    into: Mapping[int, Any] = field(default_factory=dict)  # places for outputs, by slot
    # Outputs, by slot, that belong into the very memory of an input, with the slot of that.
    shared: Mapping[int, int] = field(default_factory=dict)
    is_bound: bool = False  # what it was fed and what it writes to stays where it is
    graph_id: int = 0  # of recorded graphs to choose from; -1: none
    # For profiles.
    on_step: Callable[[PythonSegment | RegionSegment, Run, float], None] | None = None
    on_native: Callable[[NativeSegment, Times], None] | None = None

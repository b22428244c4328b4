"""The compiled program: segments over numbered slots, and the state of one run.

A run has a *frame*, the list of the values in all slots of its program. Bodies have programs and
frames of their own. A `Program` is immutable once prepared, so that threads may run it at the same
time; a `Run` belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sardonyx._native import BlockPool, Outcome, Stop, TensorExchange
from sardonyx.base.records import field, frozen, mutable
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import Const
from sardonyx.graph.fact import AnyFact
from sardonyx.graph.graph import Node
from sardonyx.graph.guard import AssumptionFailed, Guard
from sardonyx.memory import LifetimePlan
from sardonyx.memory.limit import DeviceLimit
from sardonyx.place.provider import HOST, DeviceProvider, StepCall
from sardonyx.program.expected import Expected
from sardonyx.program.native import NativeSegment, RunSettings, Times
from sardonyx.program.region import RegionSegment
from sardonyx.weights.layouts import LayoutCache, LayoutRecorder, WeightLayout

ABSENT = -1  # the slot of an absent optional input
Feed = dict[Any, Any]  # arrays by input name


@frozen
class PythonSegment:
    """One Python call: a numpy reference, a control-flow node, a region of another library."""

    node: Node
    call: StepCall
    kernel: str
    provider: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]  # slots whose last reader it is
    guards: tuple[Guard, ...]  # on sizes that earlier segments resolved
    binds: tuple[tuple[int, int, str], ...]  # (output, axis, name): dims that its outputs resolve
    expects: tuple[Expected, ...]  # of its outputs


Segment = PythonSegment | NativeSegment | RegionSegment


@frozen
class Input:
    """An input slot, and the named dims that its shape resolves."""

    name: str
    slot: int
    fact: AnyFact
    sizes: tuple[tuple[int, str], ...]  # (axis, name) of dims that are a single name
    default: Const | None = None
    device: str = HOST
    is_updated: bool = False  # a node writes to the caller's array


@frozen
class Output:
    """An output slot."""

    name: str
    slot: int
    fact: AnyFact
    device: str = HOST
    zero_trip_fact: AnyFact | None = None  # of a loop body's result if the loop has no iteration


@frozen
class FastPath:
    """A run as a single native call, which returns the list of outputs or how it failed.

    It returns None, before anything has run, if the feed needs the checked path: that of `feeds`
    and `run`.
    """

    segment: NativeSegment
    call: Callable[[Feed], list[Any] | Outcome | None]
    # The same with a preallocated array, or None, for each output.
    call_into: Callable[[Feed, list[Any] | None], list[Any] | Outcome | None] | None = None
    # The same with tensors of another library as inputs and outputs.
    call_tensors: Callable[[Feed, TensorExchange], list[Any] | Outcome | None] | None = None

    def raise_error(self, outcome: Outcome, describe: Callable[[Feed], str], feed: Feed) -> None:
        """Raise the error of a failed run.

        Return if the feed breaks an assumption of the program: assumptions are checked before the
        first kernel runs, so the checked path may start over with another program.
        """
        try:
            self.segment.fail(outcome)
        except AssumptionFailed:
            return
        except InvalidArgument as error:
            raise error.add_context(fed=describe(feed)) from None


def _selecting(
    call: Callable[..., list[Any] | Outcome | None],
    positions: Sequence[int],
    copy: Callable[[Any], Any],
) -> Callable[..., list[Any] | Outcome | None]:
    """Return a call with the results at these positions; one that is selected again is copied."""
    is_repeated = [position in positions[:i] for i, position in enumerate(positions)]

    def selected(*args: Any) -> list[Any] | Outcome | None:
        results = call(*args)
        if not isinstance(results, list):
            return results
        return [
            copy(results[position]) if again else results[position]
            for position, again in zip(positions, is_repeated, strict=True)
        ]

    return selected


@frozen
class Program:
    """Segments over the slots of a frame, with all that runs need."""

    segments: tuple[Segment, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    constants: tuple[tuple[int, Const], ...]
    captures: tuple[tuple[int, int], ...]  # (outer slot, own slot), for bodies
    guards: tuple[Guard, ...]  # on sizes that the inputs resolve
    expects: tuple[Expected, ...]  # of a body's inputs; the session checks the feeds of a model
    final_guards: tuple[Guard, ...]  # on sizes that the last segment resolves
    n_slots: int
    plan: LifetimePlan
    bodies: tuple[Program, ...]  # of its control-flow nodes
    layouts: LayoutCache
    devices: Mapping[str, DeviceProvider] = field(default_factory=dict)  # by name
    limits: tuple[DeviceLimit, ...] = ()  # of the devices' memory
    _template: list[Any] = field(default_factory=list)  # a frame with the constants alone

    def frame(self) -> list[Any]:
        """Return a new frame with the constants in it; the first call reads them."""
        if not self._template:
            template: list[Any] = [None] * (self.n_slots + 1)  # the last slot stays None: ABSENT
            for slot, const in self.constants:
                template[slot] = self.layouts.array(WeightLayout(const))
            self._template[:] = template
        return self._template.copy()

    def prepare(self, settings: RunSettings, pool: BlockPool | None = None) -> None:
        """Prepack the weights of native segments and load those of regions; bodies included."""
        pool = pool or BlockPool(settings.caching)
        for segment in self.segments:
            if isinstance(segment, NativeSegment):
                segment.prepare(self.layouts, settings, pool)
            elif isinstance(segment, RegionSegment):
                segment.prepare(self.layouts.check)
        for body in self.bodies:
            body.prepare(settings, pool)

    def record_layouts(self, recorder: LayoutRecorder) -> None:
        """Request every weight layout that a run reads from a recorder, which makes none."""
        for segment in self.segments:
            if isinstance(segment, NativeSegment):
                for layout in segment.weight_layouts():
                    recorder.address(layout)
        for _, const in self.constants:
            recorder.address(WeightLayout(const))
        for body in self.bodies:
            body.record_layouts(recorder)

    def on_host(self, number: int, result: Any) -> Any:
        """Return an output as an array of the host; it is copied there from its device."""
        device = self.outputs[number].device
        return result if device == HOST or result is None else self.devices[device].to_host(result)

    def aliases_persistent_memory(self, value: Any) -> bool:
        """Whether a value on a device is in memory that later runs read or write."""
        regions = (s for s in self.segments if isinstance(s, RegionSegment))
        return any(s.aliases_persistent_memory(value) for s in regions) or any(
            b.aliases_persistent_memory(value) for b in self.bodies
        )

    def release_graphs(self, graph_id: int) -> None:
        """Release the CUDA graphs that regions recorded for an id."""
        for segment in self.segments:
            if isinstance(segment, RegionSegment):
                segment.release_graphs(graph_id)
        for body in self.bodies:
            body.release_graphs(graph_id)

    @property
    def fast_path(self) -> FastPath | None:
        """A run as a single native call, if the program is one native segment and is prepared."""
        segment = self.only_segment
        runnable = None if segment is None else segment.runnable
        if segment is None or runnable is None:
            return None
        positions = [segment.outputs.index(o.slot) for o in self.outputs]
        if positions == list(range(len(segment.outputs))):
            return FastPath(
                segment, runnable.run_fast, runnable.run_fast_into, runnable.run_fast_tensors
            )
        return FastPath(
            segment,
            _selecting(runnable.run_fast, positions, lambda array: array.copy()),
            call_tensors=_selecting(
                runnable.run_fast_tensors, positions, lambda tensor: tensor.clone()
            ),
        )

    @property
    def only_segment(self) -> NativeSegment | None:
        """The native segment with exactly the inputs and outputs of the program, if it is the only.

        A value that is several outputs of the program is one of the segment, which may have others,
        which bodies read.
        """
        if len(self.segments) != 1 or not isinstance(self.segments[0], NativeSegment):
            return None
        segment = self.segments[0]
        same_inputs = {i.slot for i in self.inputs} == set(segment.inputs)
        if not same_inputs or not {o.slot for o in self.outputs} <= set(segment.outputs):
            return None
        return segment

    def nodes(self) -> Iterator[tuple[Node, str, str]]:
        """Yield each node with its provider and kernel, without the nodes of bodies."""
        for nodes, provider, kernel in self.groups():
            yield from ((node, provider, kernel) for node in nodes)

    def groups(self) -> Iterator[tuple[tuple[Node, ...], str, str]]:
        """Yield nodes, provider and kernel: nodes of a region together, others one by one."""
        for segment in self.segments:
            if isinstance(segment, NativeSegment):
                yield from (((node,), "cpu", kernel) for node, kernel in segment.nodes)
            else:
                nodes = (segment.node,) if isinstance(segment, PythonSegment) else segment.nodes
                yield nodes, segment.provider, segment.kernel

    @property
    def python_steps(self) -> int:
        """The number of steps that run in Python, bodies included."""
        own = sum(isinstance(s, PythonSegment) for s in self.segments)
        return own + sum(body.python_steps for body in self.bodies)


@mutable
class Run:
    """The state of one run: its frame, the sizes of named dims, and hooks to stop or profile it."""

    dims: dict[str, int]  # sizes of named dims that are resolved so far
    frame: list[Any]  # the values in the program's slots; the last entry is None, for ABSENT
    check: Callable[[], None]  # raises if the user stopped the run
    settings: RunSettings = field(default_factory=RunSettings)
    stop: Stop | None = None  # the flag that `check` reads, for native code
    pool: BlockPool | None = None  # the block pool for segments that this run prepares
    output_buffers: Mapping[int, Any] = field(default_factory=dict)  # preallocated, by slot
    # Output slot -> input slot, of outputs that are to alias the input's memory.
    shared: Mapping[int, int] = field(default_factory=dict)
    is_bound: bool = False  # by an IOBinding: buffers keep their addresses between runs
    graph_id: int = 0  # of the recorded CUDA graph; -1: none
    # Profiling hooks.
    on_step: Callable[[PythonSegment | RegionSegment, Run, float], None] | None = None
    on_native: Callable[[NativeSegment, Times], None] | None = None

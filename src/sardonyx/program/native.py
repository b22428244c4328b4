"""Native segments: runs of nodes that native code takes in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn

import numpy as np

import sardonyx._native as native
from sardonyx._native import Fault
from sardonyx.base.locks import Lock
from sardonyx.base.records import field, frozen, mutable
from sardonyx.errors import Fail, InternalError, InvalidArgument, RuntimeException
from sardonyx.graph.dim import evaluate, lone_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.program.control import ControlPart, add_constants
from sardonyx.program.flat import ABSENT, SegmentBuilder
from sardonyx.program.limit import too_much, where_most
from sardonyx.program.operands import read, unfit
from sardonyx.weights.layouts import Forms, Want, read_form

NO_LIMIT: Final = 2**63 - 1
_MOST_BYTES: Final = 2**61


@frozen
class RunSettings:
    """How a session's runs use the machine."""

    count: int = 0  # of threads; 0: as many as the process may use
    spins: bool = True  # threads that wait for work
    grows_in_place: bool = True  # caches that are fed back
    keeps: bool = True  # memory of a run for the next
    shares: bool = False  # that memory with other sessions
    limit_bytes: int = NO_LIMIT  # for arena and outputs of a run
    flushes: bool = False  # denormal numbers to zero
    spin_us: int = 200  # that threads wait for work before they sleep
    calms: bool = False  # threads when a run ends


@frozen
class Times:
    """When the steps of a native run ran."""

    # part, step, begin and end in ns, which of `names`, which of the chains that ran at once
    spans: list[tuple[int, int, int, int, int, int]]
    names: list[list[int]]  # sizes by number: those of a body are new in each pass


@mutable
class NativeSegment:
    """Parts that run one after the other in one native call; sizes of a part are known before it.

    `inputs` and `outputs` are slots of the program's frame, `slots` those of the call.
    """

    parts: tuple[SegmentBuilder | ControlPart, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    names: dict[str, int]  # sizes, as native code numbers them
    gives: tuple[str, ...]  # the sizes that are known once this has run
    values: dict[Value | int, int]  # slots of the call
    read: tuple[Value, ...]  # the values behind `inputs`
    made: tuple[Value, ...]  # the values behind `outputs`
    part_frees: list[list[int]]  # by part: slots of the call that nobody reads after it
    keys: dict[Value, tuple[int | str, ...]]  # of values that leave as dicts
    room_axes: dict[int, int] = field(init=False)  # of slots of the call that may have room
    _runnable: native.Runnable | None = None
    _limit: int = NO_LIMIT
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        grown = (g for p in self.parts if isinstance(p, SegmentBuilder) for g in p.grown)
        self.room_axes = {taken: axis for taken, _, axis, *_ in grown}

    @property
    def nodes(self) -> list[tuple[Node, str]]:
        """Each node with the kernel that runs it, as far as it takes a step of its own."""
        found: list[tuple[Node, str]] = []
        for part in self.parts:
            if isinstance(part, SegmentBuilder):
                found.extend((s.node, s.kernel) for s in part.steps)
            else:
                found.append((part.node, "bodies"))
        return found

    def all_parts(self) -> Iterator[SegmentBuilder | ControlPart]:
        """Its parts and those of bodies in it, as native code numbers them."""
        for part in self.parts:
            yield part
            if isinstance(part, ControlPart):
                yield from part.parts()

    def items(
        self, number: Callable[[Any], int], forms: Forms
    ) -> Callable[[native.ProgramSpec], None]:
        """The specs of all parts, as a function that adds them to a sequence: they add names."""
        made = [
            part.spec(number(part), self.names, forms.address)
            if isinstance(part, SegmentBuilder)
            else part.spec(number, forms)
            for part in self.parts
        ]

        def add(sequence: native.ProgramSpec) -> None:
            for part, spec, frees in zip(self.parts, made, self.part_frees, strict=True):
                if isinstance(spec, native.SegmentSpec):
                    sequence.add_segment(spec, frees)
                else:
                    assert isinstance(part, ControlPart)
                    sequence.add_control(spec, part.gives, frees)

        return add

    def wants(self) -> Iterator[Want]:
        """The constants that a run reads, in the forms that its kernels want."""
        for part in self.parts:
            if isinstance(part, SegmentBuilder):
                yield from (v.want for v in part.values if v.want is not None)
            else:
                for body in part.bodies:
                    yield from body.wants()
        for value in self.values:
            if isinstance(value, Value) and value.const is not None:
                yield read_form(value.const)

    def prepare(
        self, forms: Forms, settings: RunSettings, pool: native.BlockPool | None = None
    ) -> native.Runnable:
        """Reads and packs the weights and hands everything to native code, once."""
        with self._lock:
            if self._runnable is None:
                self._limit = settings.limit_bytes
                self._runnable = self._build(
                    forms, settings, pool or native.BlockPool(settings.keeps)
                )
            return self._runnable

    def _build(
        self, forms: Forms, settings: RunSettings, pool: native.BlockPool
    ) -> native.Runnable:
        numbers = {id(part): i for i, part in enumerate(self.all_parts())}
        try:
            add_items = self.items(lambda part: numbers[id(part)], forms)
            return native.Runnable(
                self._sequence(add_items, forms),
                input_names=[v.name for v in self.read],
                input_types=[v.tensor.dtype.np for v in self.read],
                output_types=[self._type(v) for v in self.made],
                output_dtypes=[
                    0 if v in self.keys else v.tensor.dtype.onnx for v in self.made
                ],  # dicts have none
                pool=pool,
                threads=settings.count,
                spins=settings.spins,
                spin_us=settings.spin_us,
                flushes_denormals=settings.flushes,
                stops_spinning=settings.calms,
                grows_in_place=settings.grows_in_place,
                limit_bytes=settings.limit_bytes,
                keep_alive=forms,
            )
        except native.MalformedProgram as error:
            raise InternalError(f"the compiled program is malformed: {error}") from None

    def _sequence(
        self, add_items: Callable[[native.ProgramSpec], None], forms: Forms
    ) -> native.ProgramSpec:
        """The whole of the call. Every size of an input is checked, by a number or by its name.

        A name that no step asks for stands for a size all the same: bodies rest on it.
        """
        for value in self.read:
            for size in value.tensor.dims:
                if (name := lone_name(size)) is not None:
                    self.names.setdefault(name, len(self.names))
        made = native.ProgramSpec(len(self.values), len(self.names))
        for value in self.read:
            fact, slot = value.tensor, self.values[value]
            made.add_input(slot, fact.rank, fact.dtype.onnx, self.room_axes.get(slot, ABSENT))
            for axis, size in enumerate(fact.dims):
                if isinstance(size, int):
                    made.add_size(slot, axis, size)
                elif (name := lone_name(size)) is not None:
                    made.add_name(slot, axis, self.names[name])
        for value in self.made:
            made.add_output(self.values[value])
        add_constants(made, self.values, forms)
        add_items(made)
        return made

    def _type(self, value: Value) -> object:
        """What native code makes of a value that leaves: an array of a type, or dicts with keys."""
        keys = self.keys.get(value)
        return value.tensor.dtype.np if keys is None else keys

    @property
    def runnable(self) -> native.Runnable | None:
        """What native code runs, once the segment is prepared."""
        return self._runnable

    def run(
        self,
        frame: list[Any],
        dims: dict[str, int],
        stop: native.Stop | None,
        profiles: bool,
        into: Mapping[int, Any] = MappingProxyType({}),
    ) -> Times:
        """One run; the outputs go into the frame, sizes that became known into `dims`.

        `into` has arrays for slots, in which outputs then lie if they can. Times are those of the
        steps, if it `profiles`.
        """
        runnable = self._runnable
        assert runnable is not None
        given = [dims.get(n, -1) for n in self.names]
        arrays = [
            frame[i] if self.values[value] in self.room_axes else _plain(frame[i])
            for i, value in zip(self.inputs, self.read, strict=True)
        ]
        places = [into.get(slot) for slot in self.outputs] if into else None
        result = runnable.run(given, arrays, stop, profiles, places)
        if isinstance(result, native.Outcome):
            self.fail(result)
        for name in self.gives:
            dims[name] = result.names[self.names[name]]
        for slot, array in zip(self.outputs, result.outputs, strict=True):
            frame[slot] = array
        return Times(result.spans, result.names_by_run)

    def refuse(self, part: SegmentBuilder, dims: dict[str, int]) -> NoReturn:
        """Raises the error of a part that does not take these sizes."""
        for guard in part.guards:
            guard.check(dims)
        _check_sizes(part, dims)
        shown = ", ".join(f"{n}={dims[n]}" for n in sorted(part.sizes.used & dims.keys()))
        raise InvalidArgument(f"the model does not take these sizes: {shown}")

    def fail(self, outcome: native.Outcome) -> NoReturn:
        """Raises the error that an outcome stands for, or AssumptionFailed."""
        fault, text, names = outcome.fault, outcome.text, outcome.names
        if fault is Fault.STOPPED:
            raise Fail("the run was ended by RunOptions.terminate")
        if fault is Fault.MEMORY:
            how_much = f" of {outcome.bytes:,} bytes" if outcome.bytes else ""
            raise RuntimeException(
                f"out of memory{how_much} for what lies between nodes, and for outputs"
            )
        if fault is Fault.NAME:
            raise InternalError("a value that native code was given has not the sizes of its type")
        number, part = outcome.segment, list(self.all_parts())[outcome.segment]
        if fault is Fault.LIMIT:
            raise too_much(outcome.bytes, self._limit, **self._most(number, part, names))
        if isinstance(part, ControlPart):
            raise InvalidArgument(text, node=part.node)
        dims = {name: names[i] for name, i in part.names.items() if i < len(names)}
        if fault is Fault.GUARD:
            part.guards[outcome.index].check(dims)
        if fault in (Fault.GUARD, Fault.SIZE):
            _check_sizes(part, dims)
            raise _too_large(part, names)
        if fault is Fault.STEP:
            node = part.steps[outcome.index].node
            raise InvalidArgument(text, node=node, inputs=_shapes(node, dims))
        raise InternalError(f"a native run ended with {fault.name} {outcome.index} ({text})")

    def _most(
        self, number: int, part: SegmentBuilder | ControlPart, names: list[int]
    ) -> dict[str, object]:
        """Where a part would need most memory."""
        if isinstance(part, ControlPart):
            return {"node": part.node}
        assert self._runnable is not None
        memory = self._runnable.memory_of(number, names)
        if memory is None or not memory["steps"]:
            return {}
        dims = {name: names[i] for name, i in part.names.items() if i < len(names)}
        return where_most(part, memory, lambda value: _shape(value, dims))


def _plain(array: Any) -> Any:
    """An array as native code reads it: in row-major order, without gaps."""
    if array is None or (array.flags.c_contiguous and array.flags.aligned):
        return array
    return np.array(array, order="C")


def _shapes(node: Node, dims: dict[str, int]) -> str:
    return ", ".join(_shape(v, dims) for v in node.inputs if v is not None)


def _shape(value: Value, dims: dict[str, int]) -> str:
    fact = value.fact
    if not isinstance(fact, Fact) or fact.shape is None:
        return str(value)
    try:
        return f"{value.name or '_'}:{fact.dtype}{[evaluate(d, dims) for d in fact.shape]}"
    except InternalError:
        return str(value)


def _too_large(part: SegmentBuilder, names: Sequence[int]) -> InvalidArgument:
    """The error of sizes that do not fit 64 bits on the way to others, or divide by 0."""
    wrong = unfit(part, names)
    shown = ", ".join(f"{n}={names[i]}" for n, i in sorted(part.names.items()) if i < len(names))
    node: object = next((s.node for s in part.steps if not wrong.isdisjoint(read(part, s))), None)
    return InvalidArgument(
        "a size that the model computes of these does not fit 64 bits, or divides by 0",
        node=node or "the graph",
        sizes=shown or "none is open",
    )


def _check_sizes(segment: SegmentBuilder, dims: dict[str, int]) -> None:
    """Raises the error of the first value whose shape cannot be."""
    for step in segment.steps:
        for value in step.node.outputs:
            shape = [evaluate(d, dims) for d in value.tensor.dims]
            count = 1
            for d in shape:
                count *= max(d, 1)
            if min(shape, default=0) < 0 or count * value.tensor.dtype.itemsize > _MOST_BYTES:
                raise InvalidArgument(
                    f"{value.name or 'a value'} cannot have the shape {shape}",
                    node=step.node,
                    sizes=str(value.tensor),
                )

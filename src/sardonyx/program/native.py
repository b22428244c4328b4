"""Native segments: consecutive nodes of a program that native code runs in a single call.

The call runs a native program (`native.ProgramSpec`), a list of items. An item is a segment of
kernel steps (`SegmentBuilder`) or a control-flow node (`ControlNode`).
"""

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
from sardonyx.program.control import ControlNode, add_constants
from sardonyx.program.limit import describe_peak, limit_error
from sardonyx.program.operands import invalid_registers, registers_of
from sardonyx.program.segment_builder import ABSENT, SegmentBuilder
from sardonyx.weights.layouts import LayoutCache, WeightLayout, default_layout

NO_LIMIT: Final = 2**63 - 1
_MAX_BYTES: Final = 2**61  # of a tensor: sums of a few still fit 64 bits

Item = SegmentBuilder | ControlNode


@frozen
class RunSettings:
    """How a session's runs use the machine."""

    n_threads: int = 0  # 0: as many as the process may use
    spins: bool = True  # idle threads spin before they sleep
    grows_in_place: bool = True  # KV caches that are fed back
    caching: native.Caching = native.Caching.BLOCKS  # what is kept of a run for the next
    shares_memory: bool = False  # sessions share one block pool
    limit_bytes: int = NO_LIMIT  # for arena and outputs of a run
    flushes_denormals: bool = False  # floats below the normal range count as zero
    spin_us: int = 200  # how long an idle thread spins
    stops_spinning: bool = False  # when a run ends


@frozen
class Times:
    """When the steps of a native run ran."""

    # (item, step, begin in ns, end in ns, index in `names`, which of the parallel branches)
    spans: list[tuple[int, int, int, int, int, int]]
    names: list[list[int]]  # sizes of named dims, by pass: those of a body change in each iteration


@mutable
class NativeSegment:
    """Items that run one after the other in a single native call.

    All sizes of an item are known before its first step; where sizes depend on data, a new item
    begins. `inputs`, `outputs` and `frees` are slots of the program's frame; `slots` and
    `item_frees` are those of the native call.
    """

    items: tuple[Item, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    names: dict[str, int]  # named dims, as native code numbers them
    resolved_names: tuple[str, ...]  # dims whose sizes are known once this has run
    slots: dict[Value | int, int]  # int keys are slots without a value: bytes that slots alias
    input_values: tuple[Value, ...]  # of `inputs`
    output_values: tuple[Value, ...]  # of `outputs`
    item_frees: list[list[int]]  # by item: slots whose last reader it is
    dict_keys: dict[Value, tuple[int | str, ...]]  # by output that is returned as dicts: their keys
    capacity_axes: dict[int, int] = field(init=False)  # slot -> axis with reserved rows, of caches
    _runnable: native.Runnable | None = None
    _limit: int = NO_LIMIT
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        segments = (i for i in self.items if isinstance(i, SegmentBuilder))
        self.capacity_axes = {past: axis for s in segments for past, _, axis, *_ in s.growths}

    @property
    def nodes(self) -> list[tuple[Node, str]]:
        """The nodes that have steps, with their kernels; views have none."""
        nodes: list[tuple[Node, str]] = []
        for item in self.items:
            if isinstance(item, SegmentBuilder):
                nodes.extend((s.node, s.kernel) for s in item.steps)
            else:
                nodes.append((item.node, "bodies"))
        return nodes

    def all_items(self) -> Iterator[Item]:
        """Yield the items and those of bodies, depth first: native code numbers them like this."""
        for item in self.items:
            yield item
            if isinstance(item, ControlNode):
                yield from item.body_items()

    def build_items(
        self, number: Callable[[Any], int], layouts: LayoutCache
    ) -> Callable[[native.ProgramSpec], None]:
        """Build the specs of all items; return a function that adds them to a program.

        Building may number further names, and a ProgramSpec needs their count from the start.
        """
        specs = [
            item.spec(number(item), self.names, layouts.address)
            if isinstance(item, SegmentBuilder)
            else item.spec(number, layouts)
            for item in self.items
        ]

        def add(program: native.ProgramSpec) -> None:
            for item, spec, frees in zip(self.items, specs, self.item_frees, strict=True):
                if isinstance(spec, native.SegmentSpec):
                    program.add_segment(spec, frees)
                else:
                    assert isinstance(item, ControlNode)
                    program.add_control(spec, item.resolved, frees)

        return add

    def weight_layouts(self) -> Iterator[WeightLayout]:
        """Yield the constants that a run reads, in the layouts of its kernels."""
        for item in self.items:
            if isinstance(item, SegmentBuilder):
                yield from (v.layout for v in item.values if v.layout is not None)
            else:
                for body in item.bodies:
                    yield from body.weight_layouts()
        for value in self.slots:
            if isinstance(value, Value) and value.const is not None:
                yield default_layout(value.const)

    def prepare(
        self, layouts: LayoutCache, settings: RunSettings, pool: native.BlockPool | None = None
    ) -> native.Runnable:
        """Prepack the weights and build the native program, once. Thread-safe."""
        with self._lock:
            if self._runnable is None:
                self._limit = settings.limit_bytes
                self._runnable = self._build(
                    layouts, settings, pool or native.BlockPool(settings.caching)
                )
            return self._runnable

    def _build(
        self, layouts: LayoutCache, settings: RunSettings, pool: native.BlockPool
    ) -> native.Runnable:
        numbers = {id(item): i for i, item in enumerate(self.all_items())}
        try:
            add_items = self.build_items(lambda item: numbers[id(item)], layouts)
            return native.Runnable(
                self._program_spec(add_items, layouts),
                input_names=[v.name for v in self.input_values],
                input_types=[v.tensor.dtype.np for v in self.input_values],
                output_types=[self._output_type(v) for v in self.output_values],
                output_dtypes=[
                    0 if v in self.dict_keys else v.tensor.dtype.onnx for v in self.output_values
                ],
                pool=pool,
                threads=settings.n_threads,
                spins=settings.spins,
                spin_us=settings.spin_us,
                flushes_denormals=settings.flushes_denormals,
                stops_spinning=settings.stops_spinning,
                grows_in_place=settings.grows_in_place,
                limit_bytes=settings.limit_bytes,
                keep_alive=layouts,
            )
        except native.MalformedProgram as error:
            raise InternalError(f"the compiled program is malformed: {error}") from None

    def _program_spec(
        self, add_items: Callable[[native.ProgramSpec], None], layouts: LayoutCache
    ) -> native.ProgramSpec:
        """Return the native program, which checks every fixed or named dim of an input."""
        # Also the names that no step reads: bodies may, and equal names must have equal sizes.
        for value in self.input_values:
            for size in value.tensor.dims:
                if (name := lone_name(size)) is not None:
                    self.names.setdefault(name, len(self.names))
        spec = native.ProgramSpec(len(self.slots), len(self.names))
        for value in self.input_values:
            fact, slot = value.tensor, self.slots[value]
            spec.add_input(slot, fact.rank, fact.dtype.onnx, self.capacity_axes.get(slot, ABSENT))
            for axis, size in enumerate(fact.dims):
                if isinstance(size, int):
                    spec.add_size(slot, axis, size)
                elif (name := lone_name(size)) is not None:
                    spec.add_name(slot, axis, self.names[name])
        for value in self.output_values:
            spec.add_output(self.slots[value])
        add_constants(spec, self.slots, layouts)
        add_items(spec)
        return spec

    def _output_type(self, value: Value) -> object:
        """Return the numpy type of an output array, or the keys of an output of dicts."""
        keys = self.dict_keys.get(value)
        return value.tensor.dtype.np if keys is None else keys

    @property
    def runnable(self) -> native.Runnable | None:
        """The native program; None until the segment is prepared."""
        return self._runnable

    def run(
        self,
        frame: list[Any],
        dims: dict[str, int],
        stop: native.Stop | None,
        profiles: bool,
        output_buffers: Mapping[int, Any] = MappingProxyType({}),
    ) -> Times:
        """Run once; outputs are stored into the frame, resolved sizes into `dims`. Thread-safe.

        `output_buffers` are preallocated arrays by slot, which are used if they fit. The times are
        those of the steps, empty unless it `profiles`.
        """
        runnable = self._runnable
        assert runnable is not None
        sizes = [dims.get(n, -1) for n in self.names]
        arrays = [
            frame[i] if self.slots[value] in self.capacity_axes else _contiguous(frame[i])
            for i, value in zip(self.inputs, self.input_values, strict=True)
        ]
        preallocated = None
        if output_buffers:
            preallocated = [output_buffers.get(slot) for slot in self.outputs]
        result = runnable.run(sizes, arrays, stop, profiles, preallocated)
        if isinstance(result, native.Outcome):
            self.fail(result)
        for name in self.resolved_names:
            dims[name] = result.names[self.names[name]]
        for slot, array in zip(self.outputs, result.outputs, strict=True):
            frame[slot] = array
        return Times(result.spans, result.names_by_run)

    def refuse(self, segment: SegmentBuilder, dims: dict[str, int]) -> NoReturn:
        """Raise the error of a segment that cannot be specialized for these sizes."""
        for guard in segment.guards:
            guard.check(dims)
        _check_sizes(segment, dims)
        shown = ", ".join(f"{n}={dims[n]}" for n in sorted(segment.sizes.used & dims.keys()))
        raise InvalidArgument(f"the model does not take these sizes: {shown}")

    def fail(self, outcome: native.Outcome) -> NoReturn:
        """Raise the error of a failed run; a guard on an assumption raises AssumptionFailed."""
        fault = outcome.fault
        if fault is Fault.STOPPED:
            raise Fail("the run was ended by RunOptions.terminate")
        if fault is Fault.MEMORY:
            how_much = f" of {outcome.bytes:,} bytes" if outcome.bytes else ""
            raise RuntimeException(
                f"out of memory{how_much} for the intermediate values and outputs of a run"
            )
        if fault is Fault.NAME:
            raise InternalError("an input of a native segment does not have the sizes of its type")
        item = list(self.all_items())[outcome.segment]
        if fault is Fault.LIMIT:
            raise limit_error(outcome.bytes, self._limit, **self._peak(outcome, item))
        if isinstance(item, ControlNode):
            raise InvalidArgument(outcome.text, node=item.node)
        _fail_segment(item, outcome)

    def _peak(self, outcome: native.Outcome, item: Item) -> dict[str, object]:
        """Return where an item would need most memory, for an error."""
        if isinstance(item, ControlNode):
            return {"node": item.node}
        assert self._runnable is not None
        memory = self._runnable.memory_of(outcome.segment, outcome.names)
        if memory is None or not memory["steps"]:
            return {}
        dims = _dims(item, outcome.names)
        return describe_peak(item, memory, lambda value: _shape(value, dims))


def _fail_segment(segment: SegmentBuilder, outcome: native.Outcome) -> NoReturn:
    fault, dims = outcome.fault, _dims(segment, outcome.names)
    if fault is Fault.GUARD:
        segment.guards[outcome.index].check(dims)
    # A guard that holds in Python's integers failed because its sizes overflow 64 bits.
    if fault in (Fault.GUARD, Fault.SIZE):
        _check_sizes(segment, dims)
        raise _size_error(segment, outcome.names)
    if fault is Fault.STEP:
        node = segment.steps[outcome.index].node
        raise InvalidArgument(outcome.text, node=node, inputs=_shapes(node, dims))
    raise InternalError(f"a native run ended with {fault.name} {outcome.index} ({outcome.text})")


def _dims(segment: SegmentBuilder, names: Sequence[int]) -> dict[str, int]:
    """Return the sizes of the named dims; a failure may come before the last are resolved."""
    return {name: names[i] for name, i in segment.names.items() if i < len(names)}


def _contiguous(array: Any) -> Any:
    """Return an array in row-major order, aligned and without gaps; a copy if need be."""
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


def _size_error(segment: SegmentBuilder, names: Sequence[int]) -> InvalidArgument:
    """Return the error of sizes whose computation overflows 64 bits or divides by 0."""
    invalid = invalid_registers(segment, names)
    shown = ", ".join(f"{n}={size}" for n, size in sorted(_dims(segment, names).items()))
    steps = (s for s in segment.steps if not invalid.isdisjoint(registers_of(segment, s)))
    node: object = next((s.node for s in steps), None)
    return InvalidArgument(
        "a size that the model computes of these does not fit 64 bits, or divides by 0",
        node=node or "the graph",
        sizes=shown or "none is open",
    )


def _check_sizes(segment: SegmentBuilder, dims: dict[str, int]) -> None:
    """Raise for the first value with a negative size or too many bytes."""
    for step in segment.steps:
        for value in step.node.outputs:
            shape = [evaluate(d, dims) for d in value.tensor.dims]
            count = 1
            for d in shape:
                count *= max(d, 1)
            if min(shape, default=0) < 0 or count * value.tensor.dtype.itemsize > _MAX_BYTES:
                raise InvalidArgument(
                    f"{value.name or 'a value'} cannot have the shape {shape}",
                    node=step.node,
                    sizes=str(value.tensor),
                )

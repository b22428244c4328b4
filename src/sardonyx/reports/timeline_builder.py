"""Builds the memory timeline of a program: visits its segments in order, for concrete sizes.

Sizes and offsets inside native segments come from the native memory plan (`Runnable.memory`); what
crosses segments is tracked by slot, as a run does it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.guard import AssumptionFailed, Guard
from sardonyx.program.control import ControlNode
from sardonyx.program.native import NativeSegment, RunSettings
from sardonyx.program.program import Program, PythonSegment
from sardonyx.program.region import RegionSegment
from sardonyx.program.segment_builder import SegmentBuilder
from sardonyx.reports.planned_part import (
    Dims,
    PlannedPart,
    Record,
    bytes_of,
    label,
    name_of,
    shape_of,
)
from sardonyx.reports.timeline import Arena, KernelCall, Kind, Tensor, Timeline, new_timeline


def timeline(program: Program, dims: Dims, order: str = "") -> Timeline:
    """Return the timeline of a run with these sizes, including those that depend on data."""
    return timeline_and_nodes(program, dims, order)[0]


def timeline_and_nodes(
    program: Program, dims: Dims, order: str = ""
) -> tuple[Timeline, list[Node]]:
    """Return the timeline, and the node of each of its steps."""
    missing = [name for name in open_sizes(program) if name not in dims]
    if missing:
        raise InvalidArgument(
            f"the sizes {', '.join(missing)} are known only when the model has run"
        )
    builder = _TimelineBuilder(program, dims)
    builder.build()
    built = new_timeline(
        order, builder.steps, builder.tensors(), builder.arenas, builder.local_bytes
    )
    return built, builder.nodes


def _region_outputs(segment: RegionSegment) -> list[Value]:
    """Return the values of a region that other segments read, in the order of its outputs."""
    inside = set(segment.nodes)
    values = (v for n in segment.nodes for v in n.outputs)
    return [v for v in values if v.n_exits or any(n not in inside for n, _ in v.uses)]


def open_sizes(program: Program) -> list[str]:
    """Return the names of sizes that depend on data: steps determine them while they run."""
    names: dict[str, None] = {}
    for segment in program.segments:
        if isinstance(segment, NativeSegment):
            names.update(dict.fromkeys(segment.resolved_names))
        else:
            names.update((name, None) for *_, name in segment.binds)
    return list(names)


class _TimelineBuilder:
    """Visits the segments of a program in execution order."""

    def __init__(self, program: Program, dims: Dims) -> None:
        self.program = program
        self.dims = dims
        self.steps: list[KernelCall] = []
        self.nodes: list[Node] = []  # of the steps
        self.arenas: list[Arena] = []
        self.local_bytes = 0
        self._records: list[Record] = []
        self._frame: dict[int, Record] = {}  # by slot of the program
        self._outputs = {o.slot for o in program.outputs}
        self._bodies = iter(program.bodies)  # in the order of their nodes

    def build(self) -> None:
        """Visit all segments."""
        self._check(self.program.guards)
        for spec in self.program.inputs:
            bytes_ = bytes_of(spec.fact, self.dims)
            record = Record(spec.name, "", "input", bytes_, 0, spec.fact)
            self._hold(self._frame, spec.slot, self._record(record))
        for segment in self.program.segments:
            if isinstance(segment, NativeSegment):
                self._add_native(segment)
            elif isinstance(segment, RegionSegment):
                self._add_region(segment)
            else:
                self._add_python(segment)
            for slot in segment.frees:
                self._drop(self._frame, slot)
        self._add_output_copies()

    def _add_output_copies(self) -> None:
        """Add the copies of outputs that are an input, a constant or another output."""
        last, seen = max(0, self._now - 1), set[int]()
        for output in self.program.outputs:
            record = self._frame.get(output.slot)
            if output.slot in seen or record is None or record.kind != "output":
                bytes_ = bytes_of(output.fact, self.dims)
                self._record(Record(output.name, "", "output", bytes_, last, output.fact))
            seen.add(output.slot)

    def tensors(self) -> list[Tensor]:
        """Return all tensors, by the start of their live ranges."""
        last = max(0, len(self.steps) - 1)
        tensors = [r.tensor(self.dims, last) for r in self._records]
        return sorted(tensors, key=lambda t: (t.start, -t.bytes, t.name))

    @property
    def _now(self) -> int:
        return len(self.steps)

    def _record(self, record: Record) -> Record:
        self._records.append(record)
        return record

    def _hold(self, slots: dict[int, Record], slot: int, record: Record) -> None:
        record.holders += 1
        slots[slot] = record

    def _drop(self, slots: dict[int, Record], slot: int) -> None:
        """Clear a slot; its bytes live up to the last step if no other slot refers to them."""
        record = slots.pop(slot, None)
        if record is None:
            return
        record.holders -= 1
        # Outputs stay live up to the end of the run, when the caller receives them.
        if not record.holders and record.kind != "output":
            record.end = max(record.start, self._now - 1)

    def _check(self, guards: Iterable[Guard]) -> None:
        for guard in guards:
            guard.check(self.dims)

    def _add_python(self, segment: PythonSegment) -> None:
        self._check(segment.guards)
        for slot in segment.inputs:
            if slot in self._frame:
                self._frame[slot].touched.add(self._now)
        for slot, value in zip(segment.outputs, segment.node.outputs, strict=True):
            record = self._new_value(value, self._kind(slot))
            self._hold(self._frame, slot, record)
        self._add_bodies(segment.node)
        self._add_step(segment.node, segment.kernel)

    def _add_region(self, segment: RegionSegment) -> None:
        """Add a device's values, each live from its node to the last node that reads it."""
        self._check(segment.guards)
        slots = dict(zip(_region_outputs(segment), segment.outputs, strict=True))
        # Later nodes overwrite earlier ones: what remains is the last reader, or the producer.
        last = {v: node for node in segment.nodes for v in (*node.outputs, *node.inputs)}
        inner: dict[Value, Record] = {}
        for node in segment.nodes:
            for value in node.outputs:
                slot = slots.get(value)
                inner[value] = self._new_value(value, self._kind(slot))
                if slot is not None:
                    self._hold(self._frame, slot, inner[value])
            for value in dict.fromkeys(v for v in node.inputs if v in inner):
                inner[value].touched.add(self._now)
            self._add_step(node, segment.kernel)
            for value in [v for v in inner if v not in slots and last[v] is node]:
                inner.pop(value).end = self._now - 1

    def _add_bodies(self, node: Node) -> None:
        """Add the memory of a node's bodies as scratch, as far as it is known before a run."""
        sizes = [_body_bytes(node, next(self._bodies), self.dims) for _ in node.subgraphs]
        if any(sizes):
            name = f"inside {label(node)}"
            record = self._record(Record(name, label(node), "scratch", max(sizes), self._now))
            record.end = self._now

    def _kind(self, slot: int | None) -> Kind:
        return "output" if slot in self._outputs else "value"

    def _new_value(self, value: Value, kind: Kind) -> Record:
        """Add a value that the next step produces, in a block of its own."""
        bytes_, maker = bytes_of(value.fact, self.dims), label(value.node)
        return self._record(Record(name_of(value), maker, kind, bytes_, self._now, value.fact))

    def _add_step(self, node: Node, kernel: str, part: int = -1) -> None:
        self.nodes.append(node)
        domain = f"{node.op.domain}." if node.op.domain else ""
        self.steps.append(KernelCall(label(node), f"{domain}{node.op.name}", kernel, part))

    def _add_native(self, segment: NativeSegment) -> None:
        slots: dict[int, Record] = {}
        for outer, value in zip(segment.inputs, segment.input_values, strict=True):
            if outer in self._frame:
                self._hold(slots, segment.slots[value], self._frame[outer])
        exported = zip(segment.output_values, segment.outputs, strict=True)
        leaving = {segment.slots[v]: slot for v, slot in exported}
        exits = {inner for inner, outer in leaving.items() if outer in self._outputs}
        plans = {m["number"]: m for m in _memory_plans(segment, self.program, self.dims)}
        numbers = {id(part): i for i, part in enumerate(segment.all_items())}
        for part, frees in zip(segment.items, segment.item_frees, strict=True):
            if isinstance(part, SegmentBuilder):
                number = numbers[id(part)]
                if number not in plans:
                    segment.refuse(part, dict(self.dims))
                planned = PlannedPart(part, segment, plans[number], self._now)
                self._add_part(planned, slots, exits)
            else:
                self._add_control(part, slots, exits)
            for slot in frees:
                self._drop(slots, slot)
        for inner, outer in leaving.items():
            if inner in slots:
                self._hold(self._frame, outer, slots[inner])
        # What the segment does not export ends with it.
        for slot in list(slots):
            self._drop(slots, slot)

    def _add_control(self, part: ControlNode, slots: dict[int, Record], exits: set[int]) -> None:
        """Add a step of control flow, and blocks for its outputs."""
        for slot in (*part.input_slots, *(s for body in part.captures for s in body)):
            if slot in slots:
                slots[slot].touched.add(self._now)
        for slot, value in zip(part.output_slots, part.node.outputs, strict=True):
            self._hold(slots, slot, self._new_value(value, "output" if slot in exits else "value"))
        self._add_bodies(part.node)
        self._add_step(part.node, "bodies")

    def _add_part(self, part: PlannedPart, slots: dict[int, Record], exits: set[int]) -> None:
        """Add the steps of a native part, its arena and the blocks of values that leave it."""
        for record in part.arena(self.dims):
            record.part = len(self.arenas)
            self._record(record)
        for slot, record in part.blocks():
            self._hold(slots, slot, self._record(record))
        for slot, root, value in part.aliases():
            record = slots[root]
            if record.fact is None:
                record.name, record.fact = name_of(value), value.fact
            self._hold(slots, slot, record)
        for slot in exits & slots.keys():
            slots[slot].kind = "output"
        part.touch(slots)
        for step in part.order:
            self._add_step(step.node, step.kernel, len(self.arenas))
        plan = part.plan
        self.arenas.append(Arena(plan["arena_bytes"], plan["lower_bound"]))
        self.local_bytes = max(self.local_bytes, plan["local_bytes"])


def _body_bytes(node: Node, body: Program, dims: Dims) -> int:
    """Return the bytes of arena, blocks and outputs of one iteration of a body; 0: unknown."""
    # Data-dependent sizes of a body are unknown before a run; 1 gives a lower bound.
    sizes = {**dict.fromkeys(open_sizes(body), 1), **dims}
    for value, spec in zip(node.inputs, body.inputs, strict=False):
        shape = () if value is None else shape_of(value.fact, dims) or ()
        if len(shape) == len(getattr(spec.fact, "shape", None) or ()):  # else a Scan slices it
            sizes.update((name, shape[axis]) for axis, name in spec.sizes)
    try:
        inner = timeline(body, sizes)
    except (SardonyxError, AssumptionFailed):
        return 0
    return inner.peak_bytes + inner.output_bytes


def _memory_plans(segment: NativeSegment, program: Program, dims: Dims) -> list[dict[str, Any]]:
    """Return the native memory plans of a segment's parts for these sizes."""
    runnable = segment.prepare(program.layouts, RunSettings())
    return runnable.memory([dims.get(name, -1) for name in segment.names])

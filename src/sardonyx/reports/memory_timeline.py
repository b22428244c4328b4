"""Follows a program step by step to its timeline; native code says where it puts things."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sardonyx._native import Storage
from sardonyx.base.records import field, mutable
from sardonyx.errors import InternalError, InvalidArgument, SardonyxError
from sardonyx.graph.dim import evaluate, symbols
from sardonyx.graph.dtype import STRING
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.guard import AssumptionFailed, Guard
from sardonyx.program.control import ControlPart
from sardonyx.program.flat import ABSENT, IN_OTHERS, Flat, FlatStep, SegmentBuilder
from sardonyx.program.native import NativeSegment, RunSettings
from sardonyx.program.program import Program, PythonSegment
from sardonyx.program.region import RegionSegment
from sardonyx.reports.memory import OWN, Arena, Kind, Step, Tensor, Timeline, finished, simulate

Dims = Mapping[str, int]


def timeline(program: Program, dims: Dims, order: str = "") -> Timeline:
    """What a run with these sizes takes. All sizes that steps settle must be among them."""
    return walk(program, dims, order)[0]


def walk(program: Program, dims: Dims, order: str = "") -> tuple[Timeline, list[Node]]:
    """The timeline, and the node of each of its steps."""
    missing = [name for name in open_sizes(program) if name not in dims]
    if missing:
        raise InvalidArgument(
            f"the sizes {', '.join(missing)} are known only when the model has run"
        )
    taken = _Walk(program, dims)
    taken.run()
    made = finished(order, taken.steps, taken.tensors(), taken.arenas, taken.local_bytes)
    return made, taken.nodes


def _leaving(segment: RegionSegment) -> list[Value]:
    """The values of a region that others read, in the order of its outputs."""
    inside = set(segment.nodes)
    made = (v for n in segment.nodes for v in n.outputs)
    return [v for v in made if v.n_exits or any(n not in inside for n, _ in v.uses)]


def open_sizes(program: Program) -> list[str]:
    """Names of the sizes that no input gives: steps settle them while they run."""
    found: dict[str, None] = {}
    for segment in program.segments:
        if isinstance(segment, NativeSegment):
            found.update(dict.fromkeys(segment.gives))
        else:
            found.update((name, None) for *_, name in segment.binds)
    return list(found)


@mutable(eq=False)
class _Record:
    """A tensor under way."""

    name: str
    maker: str
    kind: Kind
    bytes: int
    made: int  # the step that makes it
    fact: AnyFact | None = None
    start: int = -1  # the first step that needs its place, if that is earlier
    end: int = -1
    offset: int = OWN
    part: int = -1
    lender: int = ABSENT  # the slot of a value that is made later, in whose block it lies
    holders: int = 0  # slots that show these bytes
    touched: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.start = self.made

    def tensor(self, dims: Dims, last: int) -> Tensor:
        end = last if self.end < 0 else self.end
        if self.kind == "input":  # the caller keeps it, whatever the run does
            end = max(self.touched, default=self.start)
        touched = sorted({self.start, end, *self.touched})
        gaps = (b - a - 1 for a, b in itertools.pairwise(touched))
        return Tensor(
            name=self.name,
            maker=self.maker,
            kind=self.kind,
            bytes=self.bytes,
            made=self.made,
            start=self.start,
            end=end,
            offset=self.offset,
            part=self.part,
            dtype=str(self.fact.dtype) if isinstance(self.fact, Fact) else "",
            shape=shape_of(self.fact, dims),
            idle=max(gaps, default=0),
        )


class _Walk:
    """One walk over a program's segments."""

    def __init__(self, program: Program, dims: Dims) -> None:
        self.program = program
        self.dims = dims
        self.steps: list[Step] = []
        self.nodes: list[Node] = []  # of the steps
        self.arenas: list[Arena] = []
        self.local_bytes = 0
        self._records: list[_Record] = []
        self._frame: dict[int, _Record] = {}  # slots of the program
        self._outputs = {o.slot for o in program.outputs}
        self._bodies = iter(program.bodies)  # in the order of their nodes

    def run(self) -> None:
        """Walks from the first to the last segment."""
        self._check(self.program.guards)
        for spec in self.program.inputs:
            bytes_ = bytes_of(spec.fact, self.dims)
            record = _Record(spec.name, "", "input", bytes_, 0, spec.fact)
            self._hold(self._frame, spec.slot, self._record(record))
        for segment in self.program.segments:
            if isinstance(segment, NativeSegment):
                self._native(segment)
            elif isinstance(segment, RegionSegment):
                self._region(segment)
            else:
                self._python(segment)
            for slot in segment.frees:
                self._let_go(self._frame, slot)
        self._hand_out()

    def _hand_out(self) -> None:
        """An output that is an input, a constant or another output as it is becomes a copy."""
        last, seen = max(0, self._now - 1), set[int]()
        for output in self.program.outputs:
            record = self._frame.get(output.slot)
            if output.slot in seen or record is None or record.kind != "output":
                bytes_ = bytes_of(output.fact, self.dims)
                self._record(_Record(output.name, "", "output", bytes_, last, output.fact))
            seen.add(output.slot)

    def tensors(self) -> list[Tensor]:
        """Everything, in the order it is made."""
        last = max(0, len(self.steps) - 1)
        made = [r.tensor(self.dims, last) for r in self._records]
        return sorted(made, key=lambda t: (t.start, -t.bytes, t.name))

    @property
    def _now(self) -> int:
        return len(self.steps)

    def _record(self, record: _Record) -> _Record:
        self._records.append(record)
        return record

    def _hold(self, slots: dict[int, _Record], slot: int, record: _Record) -> None:
        record.holders += 1
        slots[slot] = record

    def _let_go(self, slots: dict[int, _Record], slot: int) -> None:
        """Nobody reads a slot after the last step."""
        record = slots.pop(slot, None)
        if record is None:
            return
        record.holders -= 1
        if not record.holders and record.kind != "output":
            record.end = max(record.start, self._now - 1)

    def _check(self, guards: Iterable[Guard]) -> None:
        for guard in guards:
            guard.check(self.dims)

    def _python(self, segment: PythonSegment) -> None:
        self._check(segment.guards)
        for slot in segment.inputs:
            if slot in self._frame:
                self._frame[slot].touched.add(self._now)
        for slot, value in zip(segment.outputs, segment.node.outputs, strict=True):
            record = self._made(value, self._kind(slot))
            self._hold(self._frame, slot, record)
        self._inside(segment.node)
        self._step(segment.node, segment.kernel)

    def _region(self, segment: RegionSegment) -> None:
        """A device's values, each from the node that makes it to the last that reads it."""
        self._check(segment.guards)
        slots = dict(zip(_leaving(segment), segment.outputs, strict=True))
        last = {v: node for node in segment.nodes for v in (*node.outputs, *node.inputs)}
        inner: dict[Value, _Record] = {}
        for node in segment.nodes:
            for value in node.outputs:
                slot = slots.get(value)
                inner[value] = self._made(value, self._kind(slot))
                if slot is not None:
                    self._hold(self._frame, slot, inner[value])
            for value in dict.fromkeys(v for v in node.inputs if v in inner):
                inner[value].touched.add(self._now)
            self._step(node, segment.kernel)
            for value in [v for v in inner if v not in slots and last[v] is node]:
                inner.pop(value).end = self._now - 1

    def _inside(self, node: Node) -> None:
        """What the bodies of a node take while it runs, as far as that is known before."""
        taken = [_body_bytes(node, next(self._bodies), self.dims) for _ in node.subgraphs]
        if any(taken):
            name = f"inside {_label(node)}"
            record = self._record(_Record(name, _label(node), "scratch", max(taken), self._now))
            record.end = self._now

    def _kind(self, slot: int | None) -> Kind:
        return "output" if slot in self._outputs else "value"

    def _made(self, value: Value, kind: Kind) -> _Record:
        """A value that the step to come makes, in a block of its own."""
        bytes_, maker = bytes_of(value.fact, self.dims), _label(value.node)
        return self._record(_Record(_named(value), maker, kind, bytes_, self._now, value.fact))

    def _step(self, node: Node, kernel: str, part: int = -1) -> None:
        self.nodes.append(node)
        domain = f"{node.op.domain}." if node.op.domain else ""
        self.steps.append(Step(_label(node), f"{domain}{node.op.name}", kernel, part))

    def _native(self, segment: NativeSegment) -> None:
        slots: dict[int, _Record] = {}
        for outer, value in zip(segment.inputs, segment.read, strict=True):
            if outer in self._frame:
                self._hold(slots, segment.values[value], self._frame[outer])
        leaving = {segment.values[v]: o for v, o in zip(segment.made, segment.outputs, strict=True)}
        exits = {inner for inner, outer in leaving.items() if outer in self._outputs}
        laid_out = {m["number"]: m for m in _memory(segment, self.program, self.dims)}
        numbers = {id(part): i for i, part in enumerate(segment.all_parts())}
        for part, frees in zip(segment.parts, segment.part_frees, strict=True):
            if isinstance(part, SegmentBuilder):
                number = numbers[id(part)]
                if number not in laid_out:
                    segment.refuse(part, dict(self.dims))
                found = _Part(part, segment, laid_out[number], self._now)
                self._part(found, slots, exits)
            else:
                self._control(part, slots, exits)
            for slot in frees:
                self._let_go(slots, slot)
        for inner, outer in leaving.items():
            if inner in slots:
                self._hold(self._frame, outer, slots[inner])
        for slot in list(slots):
            self._let_go(slots, slot)

    def _control(self, part: ControlPart, slots: dict[int, _Record], exits: set[int]) -> None:
        """Control flow takes a step, and blocks for what leaves it."""
        for slot in (*part.slots[0], *(s for body in part.captures for s in body)):
            if slot in slots:
                slots[slot].touched.add(self._now)
        for slot, value in zip(part.slots[1], part.node.outputs, strict=True):
            self._hold(slots, slot, self._made(value, "output" if slot in exits else "value"))
        self._inside(part.node)
        self._step(part.node, "bodies")

    def _part(self, part: _Part, slots: dict[int, _Record], exits: set[int]) -> None:
        """The steps of a native part, with its arena and the blocks that leave it."""
        for record in part.arena(self.dims):
            record.part = len(self.arenas)
            self._record(record)
        for slot, record in part.blocks():
            self._hold(slots, slot, self._record(record))
        for slot, root, value in part.aliases():
            record = slots[root]
            if record.fact is None:
                record.name, record.fact = _named(value), value.fact
            self._hold(slots, slot, record)
        for slot in exits & slots.keys():
            slots[slot].kind = "output"
        part.touch(slots)
        for step in part.order:
            self._step(step.node, step.row, len(self.arenas))
        said = part.laid_out
        self.arenas.append(Arena(said["arena_bytes"], said["lower_bound"]))
        self.local_bytes = max(self.local_bytes, said["local_bytes"])


class _Part:
    """A native part with what native code says of it; steps count from `first`."""

    def __init__(
        self, part: SegmentBuilder, segment: NativeSegment, laid_out: Mapping[str, Any], first: int
    ) -> None:
        self.part = part
        self.laid_out = laid_out
        self.first = first
        self.order: list[FlatStep] = [part.steps[n] for n in laid_out["steps"]]
        self._names = part.names_of_values
        self._values = {s: v for v, s in segment.values.items() if isinstance(v, Value)}
        self._makers: dict[int, int] = {}  # by root: the position of the step that begins it
        self._touched: dict[int, set[int]] = {}
        for position, step in enumerate(self.order):
            for number in (*step.inputs, *step.outputs):
                if number != ABSENT:
                    root = self._root(number)
                    self._touched.setdefault(root, set()).add(position + first)
                    self._makers.setdefault(root, position)

    def _root(self, number: int) -> int:
        """The value whose bytes a value shows."""
        while self.part.values[number].storage in IN_OTHERS:
            number = self.part.values[number].at
        return number

    def arena(self, dims: Dims) -> Iterator[_Record]:
        """What lies in the part's arena: values, then scratch."""
        first, laid_out = self.first, self.laid_out
        values: dict[int, _Record] = {}
        lent: dict[int, list[_Record]] = {}
        own = ((*entry, ABSENT) for entry in laid_out["values"])
        for number, bytes_, start, end, offset, lender in (*own, *laid_out["in_outputs"]):
            step = self.order[start]
            name, fact = self._described(number, step)
            record = _Record(name, _label(step.node), "value", bytes_, start + first, fact)
            record.end, record.offset, record.lender = end + first, offset, lender
            record.touched = self._touched.get(number, set())
            values[number] = record
        for step in self.order:
            if step.joins:
                self._join(step, values, dims)
        for record in values.values():
            if record.lender != ABSENT and record.kind == "value":
                record.part = 0
                lent.setdefault(record.lender, []).append(record)
        self._prove_lent(lent, dims)
        for record in values.values():
            if record.lender != ABSENT:
                record.kind, record.offset = "part", OWN
        yield from values.values()
        for position, bytes_, offset in laid_out["scratch"]:
            step = self.order[position]
            name, at = f"scratch of {_label(step.node)}", position + first
            record = _Record(name, _label(step.node), "scratch", bytes_, at)
            record.end, record.offset = at, offset
            yield record

    def _prove_lent(self, lent: Mapping[int, list[_Record]], dims: Dims) -> None:
        """Whatever lies in one block at one time must lie apart, and be gone when that is made."""
        sizes = dict(self.laid_out["exports"])
        made = {v.at: self._makers[n] + self.first for n, v in self._exported()}
        end = self.first + len(self.order)
        for slot, records in lent.items():
            seen = simulate([r.tensor(dims, end) for r in records], end, 1)
            if seen.reach[0] > sizes[slot] or any(r.end >= made[slot] for r in records):
                raise InternalError(f"more is lent of the block of slot {slot} than it has")

    def _exported(self) -> Iterator[tuple[int, Flat]]:
        values = enumerate(self.part.values)
        return ((n, v) for n, v in values if v.storage is Storage.EXPORTED)

    def _join(self, step: FlatStep, values: Mapping[int, _Record], dims: Dims) -> None:
        """Finds the inputs that were made where the step's output lies, which so lives longer."""
        whole = values.get(step.outputs[0])
        if whole is None:
            return
        end = whole.offset + bytes_of(whole.fact, dims)  # others may lie in what fills it up
        for number in step.inputs:
            part = values.get(self._root(number))
            if part is None or part is whole or part.kind != "value":
                continue
            if part.lender != whole.lender:
                continue
            if not whole.offset <= part.offset < end:
                continue
            part.kind = "part"
            whole.start, whole.end = min(whole.start, part.start), max(whole.end, part.end)
            whole.touched |= part.touched

    def _described(self, number: int, step: FlatStep) -> tuple[str, AnyFact | None]:
        """A value's name and fact; one that the graph does not have is a copy for a step."""
        value = self._names.get(number)
        if value is not None:
            return _named(value), value.fact
        source = self._names.get(step.inputs[0]) if step.inputs else None
        if step.row != "copy" or source is None:
            return f"part of {_label(step.node)}", None
        return f"copy of {_named(source)}", source.fact

    def blocks(self) -> Iterator[tuple[int, _Record]]:
        """The slots and blocks of what leaves the part."""
        made = {v.at: n for n, v in self._exported()}
        for slot, bytes_ in self.laid_out["exports"]:
            if slot not in made:
                continue  # shows the bytes of another
            value, at = self._values.get(slot), self._makers[made[slot]]
            maker = _label(self.order[at].node)
            name, fact = (maker, None) if value is None else (_named(value), value.fact)
            yield slot, _Record(name, maker, "value", bytes_, at + self.first, fact)

    def aliases(self) -> Iterator[tuple[int, int, Value]]:
        """Slots that show the bytes of another slot, in another shape."""
        for slot, number in self.part.aliases:
            yield slot, self.part.values[self._root(number)].at, self._values[slot]

    def touch(self, slots: Mapping[int, _Record]) -> None:
        """Notes which steps look at what lies outside of the arena."""
        for number, touched in self._touched.items():
            flat = self.part.values[number]
            if flat.storage in (Storage.SLOT, Storage.EXPORTED) and flat.at in slots:
                slots[flat.at].touched |= touched


def _body_bytes(node: Node, body: Program, dims: Dims) -> int:
    """Arena, blocks and outputs of one pass of a body; 0 where its sizes are not known."""
    sizes = {**dict.fromkeys(open_sizes(body), 1), **dims}
    for value, spec in zip(node.inputs, body.inputs, strict=False):
        shape = () if value is None else shape_of(value.fact, dims) or ()
        if len(shape) == len(getattr(spec.fact, "shape", None) or ()):  # else a Scan cuts it
            sizes.update((name, shape[axis]) for axis, name in spec.sizes)
    try:
        found = timeline(body, sizes)
    except (SardonyxError, AssumptionFailed):
        return 0
    return found.peak_bytes + found.output_bytes


def _memory(segment: NativeSegment, program: Program, dims: Dims) -> list[dict[str, Any]]:
    """What native code says of a segment's parts for these sizes."""
    runnable = segment.prepare(program.forms, RunSettings())
    return runnable.memory([dims.get(name, -1) for name in segment.names])


def shape_of(fact: AnyFact | None, dims: Dims) -> tuple[int, ...] | None:
    """A tensor's shape as numbers; None where these sizes do not give it."""
    if not isinstance(fact, Fact) or fact.shape is None:
        return None
    if any(not symbols(d) <= dims.keys() for d in fact.shape):
        return None
    return tuple(evaluate(d, dims) for d in fact.shape)


def bytes_of(fact: AnyFact | None, dims: Dims) -> int:
    """Bytes of a tensor of numbers; 0 for anything else: nobody knows them before a run."""
    shape = shape_of(fact, dims)
    if shape is None or not isinstance(fact, Fact) or fact.dtype is STRING:
        return 0
    return math.prod(shape) * fact.dtype.itemsize


def _named(value: Value) -> str:
    return value.name or _label(value.node)


def _label(node: Node | None) -> str:
    return "" if node is None else node.name or node.op.name

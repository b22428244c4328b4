"""The tensors of a native segment part: what its memory plan places in the arena and elsewhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sardonyx._native import Storage
from sardonyx.base.records import field, mutable
from sardonyx.errors import InternalError
from sardonyx.graph.dim import evaluate, symbols
from sardonyx.graph.dtype import STRING
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.program.native import NativeSegment
from sardonyx.program.segment_builder import (
    ABSENT,
    ALIASING,
    SegmentBuilder,
    SegmentStep,
    SegmentValue,
)
from sardonyx.reports.timeline import OWN, Kind, Tensor, simulate

Dims = Mapping[str, int]


@mutable(eq=False)
class Record:
    """A tensor whose live range is still growing."""

    name: str
    maker: str
    kind: Kind
    bytes: int
    made: int  # the step that produces it
    fact: AnyFact | None = None
    start: int = -1  # the first step in which its bytes are live; `made`, or earlier
    end: int = -1
    offset: int = OWN
    part: int = -1
    lender: int = ABSENT  # slot of an output produced later, whose block holds these bytes
    own_block: int = ABSENT  # a block of the part, for values that overwrite each other
    holders: int = 0  # number of slots that refer to these bytes
    touched: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.start = self.made

    def tensor(self, dims: Dims, last: int) -> Tensor:
        end = last if self.end < 0 else self.end
        if self.kind == "input":  # the caller owns it: report its last use
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


class PlannedPart:
    """A native part with its native memory plan; its first step has the index `first`."""

    def __init__(
        self, part: SegmentBuilder, segment: NativeSegment, plan: Mapping[str, Any], first: int
    ) -> None:
        self.part = part
        self.plan = plan
        self.first = first
        self.order: list[SegmentStep] = [part.steps[n] for n in plan["steps"]]
        self._names = part.values_by_number
        self._values = {s: v for v, s in segment.slots.items() if isinstance(v, Value)}
        self._makers: dict[int, int] = {}  # by root: the position of the first step that uses it
        self._touched: dict[int, set[int]] = {}
        for position, step in enumerate(self.order):
            for number in (*step.inputs, *step.outputs):
                if number != ABSENT:
                    root = self._root(number)
                    self._touched.setdefault(root, set()).add(position + first)
                    self._makers.setdefault(root, position)

    def _root(self, number: int) -> int:
        """Return the value whose bytes a value aliases."""
        while self.part.values[number].storage in ALIASING:
            number = self.part.values[number].at
        return number

    def arena(self, dims: Dims) -> Iterator[Record]:
        """Yield the tensors in the part's arena and its own blocks: values, then scratch."""
        values = dict(self._value_records())
        lent: dict[int, list[Record]] = {}
        for step in self.order:
            if step.is_concat:
                self._mark_concat_inputs(step, values, dims)
        for record in values.values():
            if record.lender != ABSENT and record.kind == "value":
                record.part = 0
                lent.setdefault(record.lender, []).append(record)
        # Inputs of a Concat are inside its output's bytes by design, so they are not compared.
        self._check_lent(lent, dims)
        for record in values.values():
            if record.lender != ABSENT:
                record.kind, record.offset = "part", OWN
        _end_when_overwritten([r for r in values.values() if r.own_block != ABSENT])
        yield from values.values()
        for position, bytes_, offset in self.plan["scratch"]:
            step = self.order[position]
            name, at = f"scratch of {label(step.node)}", position + self.first
            record = Record(name, label(step.node), "scratch", bytes_, at)
            record.end, record.offset = at, offset
            yield record

    def _value_records(self) -> Iterator[tuple[int, Record]]:
        """Yield the values that the native plan places, by number.

        It lists (value, bytes, start, end, offset) of values in the arena, and the same with the
        slot of the lending output for values in the block of a later output, or with the number of
        an own block.
        """
        first, plan = self.first, self.plan
        in_arena = ((*entry, ABSENT, ABSENT) for entry in plan["values"])
        lent = ((*entry, ABSENT) for entry in plan["in_outputs"])
        own = ((*entry[:-1], ABSENT, entry[-1]) for entry in plan["in_own_blocks"])
        for number, bytes_, start, end, offset, lender, block in (*in_arena, *lent, *own):
            step = self.order[start]
            name, fact = self._described(number, step)
            record = Record(name, label(step.node), "value", bytes_, start + first, fact)
            record.end, record.offset = end + first, offset
            record.lender, record.own_block = lender, block
            record.touched = self._touched.get(number, set())
            yield number, record

    def _check_lent(self, lent: Mapping[int, list[Record]], dims: Dims) -> None:
        """Raise an error if values in an output's block overlap, or live when it is produced."""
        sizes = dict(self.plan["exports"])
        producers = {v.at: self._makers[n] + self.first for n, v in self._exported()}
        end = self.first + len(self.order)
        for slot, records in lent.items():
            simulation = simulate([r.tensor(dims, end) for r in records], end, 1)
            # A value of no bytes is one that the output overwrites: its bytes are the output's.
            late = any(r.bytes and r.end >= producers[slot] for r in records)
            if simulation.reach[0] > sizes.get(slot, 0) or late:  # without elements: not in it
                raise InternalError(
                    f"values in the block of slot {slot} exceed it, or outlive its use as scratch"
                )

    def _exported(self) -> Iterator[tuple[int, SegmentValue]]:
        values = enumerate(self.part.values)
        return ((n, v) for n, v in values if v.storage is Storage.EXPORTED)

    def _mark_concat_inputs(
        self, step: SegmentStep, values: Mapping[int, Record], dims: Dims
    ) -> None:
        """Mark inputs that were written directly into the step's output, and extend its range."""
        whole = values.get(step.outputs[0])
        if whole is None:
            return
        end = whole.offset + bytes_of(whole.fact, dims)  # others may be in its padding
        for number in step.inputs:
            part = values.get(self._root(number))
            if part is None or part is whole or part.kind != "value":
                continue
            if (part.lender, part.own_block) != (whole.lender, whole.own_block):
                continue
            if not whole.offset <= part.offset < end:
                continue
            part.kind = "part"
            whole.start, whole.end = min(whole.start, part.start), max(whole.end, part.end)
            whole.touched |= part.touched

    def _described(self, number: int, step: SegmentStep) -> tuple[str, AnyFact | None]:
        """Return a value's name and fact; one that is not in the graph is a copy for a step."""
        value = self._names.get(number)
        if value is not None:
            return name_of(value), value.fact
        source = self._names.get(step.inputs[0]) if step.inputs else None
        if step.kernel != "copy" or source is None:
            return f"part of {label(step.node)}", None
        return f"copy of {name_of(source)}", source.fact

    def blocks(self) -> Iterator[tuple[int, Record]]:
        """Yield the slots and blocks of values that leave the part."""
        numbers = {v.at: n for n, v in self._exported()}
        for slot, bytes_ in self.plan["exports"]:
            if slot not in numbers:
                continue  # an alias of another slot
            value, at = self._values.get(slot), self._makers[numbers[slot]]
            maker = label(self.order[at].node)
            name, fact = (maker, None) if value is None else (name_of(value), value.fact)
            yield slot, Record(name, maker, "value", bytes_, at + self.first, fact)

    def aliases(self) -> Iterator[tuple[int, int, Value]]:
        """Yield slots that alias another slot's bytes, in another shape: slot, root slot, value."""
        for slot, number in self.part.aliases:
            yield slot, self.part.values[self._root(number)].at, self._values[slot]

    def touch(self, slots: Mapping[int, Record]) -> None:
        """Record which steps access values outside of the arena."""
        for number, touched in self._touched.items():
            flat = self.part.values[number]
            if flat.storage in (Storage.SLOT, Storage.EXPORTED) and flat.at in slots:
                slots[flat.at].touched |= touched


def _end_when_overwritten(records: Sequence[Record]) -> None:
    """End values in own blocks before the step that writes the next one over them."""
    blocks: dict[int, list[Record]] = {}
    for record in records:
        record.offset = OWN
        if record.kind == "value":
            blocks.setdefault(record.own_block, []).append(record)
    for values in blocks.values():
        values.sort(key=lambda r: r.start)
        for old, new in itertools.pairwise(values):
            if new.start < old.end or new.bytes != old.bytes or old.start == new.start:
                raise InternalError(f"{new.name} and {old.name} share a block")
            old.end = new.start - 1


def shape_of(fact: AnyFact | None, dims: Dims) -> tuple[int, ...] | None:
    """Return a tensor's shape as numbers; None if these sizes do not determine it."""
    if not isinstance(fact, Fact) or fact.shape is None:
        return None
    if any(not symbols(d) <= dims.keys() for d in fact.shape):
        return None
    return tuple(evaluate(d, dims) for d in fact.shape)


def bytes_of(fact: AnyFact | None, dims: Dims) -> int:
    """Return the bytes of a tensor of numbers; 0 for anything else, unknown before a run."""
    shape = shape_of(fact, dims)
    if shape is None or not isinstance(fact, Fact) or fact.dtype is STRING:
        return 0
    return math.prod(shape) * fact.dtype.itemsize


def name_of(value: Value) -> str:
    """Return a value's name, or that of the node that produces it."""
    return value.name or label(value.node)


def label(node: Node | None) -> str:
    """Return a node's name, or its op."""
    return "" if node is None else node.name or node.op.name

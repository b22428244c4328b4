"""The weights of a program: source, layouts in memory, and the nodes that read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sardonyx.base.records import field, mutable
from sardonyx.graph.const import Const, Recipe, Ref
from sardonyx.graph.graph import Node, Value
from sardonyx.program.control import ControlPart
from sardonyx.program.flat import ABSENT, IN_OTHERS, SegmentBuilder
from sardonyx.program.native import NativeSegment
from sardonyx.program.program import Program, PythonSegment
from sardonyx.weights.layouts import STORED, Want

MAPPED: Final = "mapped"  # read directly from a file or a user's buffer
PACKED: Final = "packed"  # by a prepack kernel
COPIED: Final = "copied"  # small, unaligned, or computed from others


@mutable
class WeightLayoutReport:
    """A layout of a weight that some kernels read."""

    want: Want
    nodes: dict[Node, None] = field(default_factory=dict)  # nodes that read it, in order
    other_programs: int = 0  # programs of this process that read the same memory
    in_pack: bool = False  # the packed layout is mapped from a pack

    @property
    def state(self) -> str:
        """Mapped, packed or copied."""
        if self.want.is_packed:
            return MAPPED if self.in_pack else PACKED
        return MAPPED if self.want.lies_ready else COPIED

    @property
    def layout(self) -> str:
        """The layout in words."""
        const = self.want.const
        if self.want.is_packed:
            return f"packed by {self.want.row}"
        if self.want.lies_ready:
            return "as stored"
        if isinstance(const, Recipe):
            return "computed"
        if isinstance(const, Ref) and const.dtype.bits < 8:
            return "as stored" if self.want.row == STORED else "unpacked"
        return "small copy" if const.is_small else "aligned copy"

    @property
    def own_bytes(self) -> int:
        """The anonymous memory of the layout."""
        return 0 if self.in_pack else self.want.own_bytes

    @property
    def memory_key(self) -> object:
        """A key that is equal for layouts in the same memory."""
        place = self.want.const.place
        if place is None or not self.want.is_shared:
            return self.want
        return (place.key, self.want.row, self.want.ints)


def weight_layouts_of(program: Program) -> dict[Const, list[WeightLayoutReport]]:
    """Return the layouts of every constant that runs of a program read, without reading weights."""
    reports: dict[Want, WeightLayoutReport] = {}
    for want, node in _wants(program):
        report = reports.get(want)
        if report is None:
            forms = program.forms
            is_found = forms.found(want) is not None
            report = WeightLayoutReport(want, other_programs=forms.others(want), in_pack=is_found)
            reports[want] = report
        report.nodes[node] = None
    by_const: dict[Const, list[WeightLayoutReport]] = {}
    for want, report in reports.items():
        by_const.setdefault(want.const, []).append(report)
    return by_const


def _wants(program: Program) -> Iterator[tuple[Want, Node]]:
    by_slot = dict(program.constants)
    for segment in program.segments:
        if isinstance(segment, PythonSegment):
            yield from ((Want(by_slot[i]), segment.node) for i in segment.inputs if i in by_slot)
        elif isinstance(segment, NativeSegment):
            yield from _native_wants(segment)
    native = {id(p) for s in program.segments if isinstance(s, NativeSegment) for p in _bodies(s)}
    for body in program.bodies:
        if not any(id(s) in native for s in body.segments):
            yield from _wants(body)


def _bodies(segment: NativeSegment) -> Iterator[NativeSegment]:
    """Yield the segments of bodies that run within a native segment."""
    for part in segment.all_parts():
        if isinstance(part, ControlPart):
            yield from (b.segment for b in part.bodies if b.segment is not None)


def _native_wants(segment: NativeSegment) -> Iterator[tuple[Want, Node]]:
    for part in segment.all_parts():
        if isinstance(part, ControlPart):
            yield from _control_wants(part)
            continue
        for step in part.steps:
            for number in step.inputs:
                want = None if number == ABSENT else _root_want(part, number)
                if want is not None:
                    yield want, step.node


def _control_wants(part: ControlPart) -> Iterator[tuple[Want, Node]]:
    """Yield constants that are inputs of control flow, or captures or outputs of its bodies."""
    values: list[Value | None] = [*part.node.inputs]
    for body in part.bodies:
        values += [*body.captures, *body.graph.outputs]
    yield from ((Want(v.const), part.node) for v in values if v is not None and v.const is not None)


def _root_want(part: SegmentBuilder, number: int) -> Want | None:
    """Return the constant whose bytes an operand aliases; None if it is not a constant."""
    value = part.values[number]
    while value.storage in IN_OTHERS:
        value = part.values[value.at]
    return value.want

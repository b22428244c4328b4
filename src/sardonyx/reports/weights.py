"""What becomes of each weight of a program: where it lies, in which forms, who reads them."""

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

MAPPED: Final = "mapped"  # read where it lies: in a file, or in a user's buffer
PACKED: Final = "packed"  # by a kernel row
COPIED: Final = "copied"  # small, unaligned, or made of others


@mutable
class FormReport:
    """A form of a weight that some kernels read."""

    want: Want
    nodes: dict[Node, None] = field(default_factory=dict)  # those that read it, in order
    other_programs: int = 0  # programs of this process that read the same memory
    in_pack: bool = False  # the packed form lies in a file

    @property
    def state(self) -> str:
        """Mapped, packed or copied."""
        if self.want.is_packed:
            return MAPPED if self.in_pack else PACKED
        return MAPPED if self.want.lies_ready else COPIED

    @property
    def layout(self) -> str:
        """How the bytes lie, for people."""
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
        """Anonymous memory that the form takes."""
        return 0 if self.in_pack else self.want.own_bytes

    @property
    def memory_key(self) -> object:
        """What is equal for forms that are one piece of memory."""
        place = self.want.const.place
        if place is None or not self.want.is_shared:
            return self.want
        return (place.key, self.want.row, self.want.ints)


def forms_of(program: Program) -> dict[Const, list[FormReport]]:
    """The forms of every constant that a program reads while it runs. Reads no weight."""
    found: dict[Want, FormReport] = {}
    for want, node in _wants(program):
        report = found.get(want)
        if report is None:
            forms = program.forms
            is_found = forms.found(want) is not None
            report = FormReport(want, other_programs=forms.others(want), in_pack=is_found)
            found[want] = report
        report.nodes[node] = None
    by_const: dict[Const, list[FormReport]] = {}
    for want, report in found.items():
        by_const.setdefault(want.const, []).append(report)
    return by_const


def _wants(program: Program) -> Iterator[tuple[Want, Node]]:
    by_slot = dict(program.constants)
    for segment in program.segments:
        if isinstance(segment, PythonSegment):
            yield from ((Want(by_slot[i]), segment.node) for i in segment.inputs if i in by_slot)
        elif isinstance(segment, NativeSegment):
            yield from _native(segment)
    native = {id(p) for s in program.segments if isinstance(s, NativeSegment) for p in _bodies(s)}
    for body in program.bodies:
        if not any(id(s) in native for s in body.segments):
            yield from _wants(body)


def _bodies(segment: NativeSegment) -> Iterator[NativeSegment]:
    """The segments of bodies that run within a native segment."""
    for part in segment.all_parts():
        if isinstance(part, ControlPart):
            yield from (b.segment for b in part.bodies if b.segment is not None)


def _native(segment: NativeSegment) -> Iterator[tuple[Want, Node]]:
    for part in segment.all_parts():
        if isinstance(part, ControlPart):
            yield from _taken(part)
            continue
        for step in part.steps:
            for number in step.inputs:
                want = None if number == ABSENT else _behind(part, number)
                if want is not None:
                    yield want, step.node


def _taken(part: ControlPart) -> Iterator[tuple[Want, Node]]:
    """Constants that control flow itself takes, or hands into or out of its bodies."""
    values: list[Value | None] = [*part.node.inputs]
    for body in part.bodies:
        values += [*body.captures, *body.graph.outputs]
    yield from ((Want(v.const), part.node) for v in values if v is not None and v.const is not None)


def _behind(part: SegmentBuilder, number: int) -> Want | None:
    """The constant whose bytes an operand shows, if it is one."""
    value = part.values[number]
    while value.storage in IN_OTHERS:
        value = part.values[value.at]
    return value.want

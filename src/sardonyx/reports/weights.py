"""The weights of a program: source, layouts in memory, and the nodes that read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sardonyx.base.records import field, mutable
from sardonyx.graph.const import Const, Recipe, SourceConst
from sardonyx.graph.graph import Node, Value
from sardonyx.program.control import ControlNode
from sardonyx.program.native import NativeSegment
from sardonyx.program.program import Program, PythonSegment
from sardonyx.program.segment_builder import ABSENT, ALIASING, SegmentBuilder
from sardonyx.weights.layouts import STORED, WeightLayout

MAPPED: Final = "mapped"  # read directly from a file or a user's buffer
PACKED: Final = "packed"  # by a prepack kernel
COPIED: Final = "copied"  # small, unaligned, or computed from others


@mutable
class WeightLayoutReport:
    """A layout of a weight that some kernels read."""

    weight: WeightLayout
    nodes: dict[Node, None] = field(default_factory=dict)  # nodes that read it, in order
    other_programs: int = 0  # programs of this process that read the same memory
    in_pack: bool = False  # the packed layout is mapped from a pack

    @property
    def state(self) -> str:
        """Mapped, packed or copied."""
        if self.weight.is_packed:
            return MAPPED if self.in_pack else PACKED
        return MAPPED if self.weight.is_readable_in_place else COPIED

    @property
    def layout(self) -> str:
        """The layout in words."""
        const = self.weight.const
        if self.weight.is_packed:
            return f"packed by {self.weight.kind}"
        if self.weight.is_readable_in_place:
            return "as stored"
        if isinstance(const, Recipe):
            return "computed"
        if isinstance(const, SourceConst) and const.dtype.bits < 8:
            return "as stored" if self.weight.kind == STORED else "unpacked"
        return "small copy" if const.is_small else "aligned copy"

    @property
    def own_bytes(self) -> int:
        """The anonymous memory of the layout."""
        return 0 if self.in_pack else self.weight.own_bytes

    @property
    def memory_key(self) -> object:
        """A key that is equal for layouts in the same memory."""
        content_id = self.weight.const.content_id
        if content_id is None or not self.weight.is_shared:
            return self.weight
        return (content_id.key, self.weight.kind, self.weight.ints)


def weight_layouts_of(program: Program) -> dict[Const, list[WeightLayoutReport]]:
    """Return the layouts of every constant that runs of a program read, without reading weights."""
    reports: dict[WeightLayout, WeightLayoutReport] = {}
    for weight, node in _weights(program):
        report = reports.get(weight)
        if report is None:
            in_pack = program.layouts.find_prepacked(weight) is not None
            n_others = program.layouts.n_other_users(weight)
            report = WeightLayoutReport(weight, other_programs=n_others, in_pack=in_pack)
            reports[weight] = report
        report.nodes[node] = None
    by_const: dict[Const, list[WeightLayoutReport]] = {}
    for weight, report in reports.items():
        by_const.setdefault(weight.const, []).append(report)
    return by_const


def _weights(program: Program) -> Iterator[tuple[WeightLayout, Node]]:
    by_slot = dict(program.constants)
    for segment in program.segments:
        if isinstance(segment, PythonSegment):
            constants = (by_slot[i] for i in segment.inputs if i in by_slot)
            yield from ((WeightLayout(const), segment.node) for const in constants)
        elif isinstance(segment, NativeSegment):
            yield from _native_weights(segment)
    native = {id(p) for s in program.segments if isinstance(s, NativeSegment) for p in _bodies(s)}
    for body in program.bodies:
        if not any(id(s) in native for s in body.segments):
            yield from _weights(body)


def _bodies(segment: NativeSegment) -> Iterator[NativeSegment]:
    """Yield the segments of bodies that run within a native segment."""
    for part in segment.all_items():
        if isinstance(part, ControlNode):
            yield from (b.segment for b in part.bodies if b.segment is not None)


def _native_weights(segment: NativeSegment) -> Iterator[tuple[WeightLayout, Node]]:
    for part in segment.all_items():
        if isinstance(part, ControlNode):
            yield from _control_weights(part)
            continue
        for step in part.steps:
            for number in step.inputs:
                weight = None if number == ABSENT else _root_weight(part, number)
                if weight is not None:
                    yield weight, step.node


def _control_weights(part: ControlNode) -> Iterator[tuple[WeightLayout, Node]]:
    """Yield constants that are inputs of control flow, or captures or outputs of its bodies."""
    values: list[Value | None] = [*part.node.inputs]
    for body in part.bodies:
        values += [*body.captures, *body.graph.outputs]
    constants = (v.const for v in values if v is not None)
    yield from ((WeightLayout(const), part.node) for const in constants if const is not None)


def _root_weight(part: SegmentBuilder, number: int) -> WeightLayout | None:
    """Return the constant whose bytes an operand aliases; None if it is not a constant."""
    value = part.values[number]
    while value.storage in ALIASING:
        value = part.values[value.at]
    return value.layout

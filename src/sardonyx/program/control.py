"""If, Loop and Scan with native bodies: control nodes of a native program (`native.ControlSpec`).

Native code runs a control-flow node if each of its bodies is at most one native segment. Others run
in Python, by the reference of the op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import sardonyx._native as native
from sardonyx._native import ControlKind
from sardonyx.base.records import frozen
from sardonyx.graph.dim import lone_name
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.ops.inference import axis_of
from sardonyx.program.segment_builder import ABSENT, SegmentBuilder
from sardonyx.weights.layouts import LayoutCache, WeightLayout, default_layout

if TYPE_CHECKING:
    from sardonyx.program.native import NativeSegment
    from sardonyx.program.program import Program

_KINDS: Final = {"If": ControlKind.BRANCH, "Loop": ControlKind.LOOP, "Scan": ControlKind.SCAN}


@frozen
class NativeBody:
    """A body with one native segment, or none if it only returns inputs, captures or constants."""

    graph: Graph
    segment: NativeSegment | None

    @property
    def captures(self) -> list[Value]:
        """The outer values that the body reads."""
        return self.graph.captures()

    @property
    def inputs(self) -> list[Value]:
        """The inputs of its native program: its own, then the captures."""
        return [*self.graph.inputs, *self.captures]

    def outer_names(self) -> list[str]:
        """Return the named dims whose sizes must come from the outer program."""
        if self.segment is None:
            return []
        own = {lone_name(d) for v in self.inputs for d in v.tensor.shape or ()}
        own.update(self.segment.resolved_names)
        return [n for n in self.segment.names if n not in own]

    def spec(self, number: Callable[[Any], int], layouts: LayoutCache) -> native.ProgramSpec:
        """Return the native program of the body; `number` returns the number of an item."""
        segment = self.segment
        slots: dict[Value | int, int] = {} if segment is None else segment.slots
        names = {} if segment is None else segment.names
        # First the items, which may add names, then inputs and outputs, which may add slots: a
        # ProgramSpec needs the counts of both from the start.
        add_items = None if segment is None else segment.build_items(number, layouts)
        inputs = [(v, slots.setdefault(v, len(slots))) for v in self.inputs]
        outputs = [slots.setdefault(v, len(slots)) for v in self.graph.outputs]
        spec = native.ProgramSpec(len(slots), len(names))
        for value, slot in inputs:
            fact = value.tensor
            spec.add_input(slot, len(fact.shape or ()), fact.dtype.onnx, ABSENT)
            for axis, size in enumerate(fact.shape or ()):
                if (name := lone_name(size)) in names:
                    spec.add_name(slot, axis, names[name])
        for slot in outputs:
            spec.add_output(slot)
        add_constants(spec, slots, layouts)
        if add_items is not None:
            add_items(spec)
        return spec

    def weight_layouts(self) -> Iterator[WeightLayout]:
        """Yield the constants that a run of the body reads, in the layouts of its kernels."""
        if self.segment is not None:
            yield from self.segment.weight_layouts()
        yield from (default_layout(v.const) for v in self.graph.outputs if v.const is not None)


def add_constants(
    spec: native.ProgramSpec, slots: dict[Value | int, int], layouts: LayoutCache
) -> None:
    """Add the slots that hold constants."""
    for v, slot in slots.items():
        if isinstance(v, Value) and v.const is not None:
            address = layouts.address(default_layout(v.const))
            spec.add_constant(slot, v.const.dtype.onnx, v.const.shape, address)


@frozen
class ControlNode:
    """A control-flow node among the items of a native segment."""

    node: Node
    bodies: tuple[NativeBody, ...]  # If: then, else; others: one
    input_slots: list[int]  # -1: absent
    output_slots: list[int]
    captures: tuple[list[int], ...]  # slots, by body
    names: tuple[list[tuple[int, int]], ...]  # (name outside, name inside), by body
    resolved: list[tuple[int, int, int]]  # (slot, axis, name): dims that its outputs resolve

    def spec(self, number: Callable[[Any], int], layouts: LayoutCache) -> native.ControlSpec:
        """Return the spec of the node; `number` returns the number of an item."""
        kind = _KINDS[self.node.op.name]
        spec = native.ControlSpec(kind, number(self), self.input_slots, self.output_slots)
        for body, captures, names in zip(self.bodies, self.captures, self.names, strict=True):
            spec.add_body(body.spec(number, layouts), captures, names)
        for scan_output in _scan_outputs(self.node, self.bodies[0]):
            spec.add_scan_output(*scan_output)
        for scan_input in _scan_inputs(self.node):
            spec.add_scan_input(*scan_input)
        return spec

    def body_items(self) -> Iterator[SegmentBuilder | ControlNode]:
        """Yield the items of all bodies."""
        for body in self.bodies:
            if body.segment is not None:
                yield from body.segment.all_items()


def native_bodies(node: Node, programs: dict[str, Program]) -> tuple[NativeBody, ...] | None:
    """Return the bodies of a node if native code can run all of them, else None."""
    keys = ("then_branch", "else_branch") if node.op.name == "If" else ("body",)
    if not all(_is_one(f) for f in _control_facts(node)):
        return None
    bodies = []
    for key in keys:
        body = _native_body(node.attrs[key], programs[key])
        if body is None:
            return None
        bodies.append(body)
    return tuple(bodies)


def _native_body(graph: Graph, program: Program) -> NativeBody | None:
    from sardonyx.program.native import NativeSegment  # which imports this module

    segments = program.segments
    if len(segments) > 1 or not all(isinstance(s, NativeSegment) for s in segments):
        return None
    if not segments and program.guards:  # only segments check guards in native code
        return None
    read = (*(v for v in graph.inputs if v.is_used), *graph.captures(), *graph.outputs)
    if not all(_fits_slot(v.fact) for v in read):
        return None
    if not all(isinstance(v.fact, Fact) for v in graph.inputs):
        return None
    segment = segments[0] if segments else None
    assert segment is None or isinstance(segment, NativeSegment)
    return NativeBody(graph, segment)


def _control_facts(node: Node) -> list[AnyFact | None]:
    """Return the facts of trip counts and conditions, which native code reads as scalars."""
    if node.op.name == "If":
        return [v.fact for v in node.inputs if v is not None]
    if node.op.name == "Loop":
        inputs = [v.fact for v in node.inputs[:2] if v is not None]
        return [*inputs, node.attrs["body"].outputs[0].fact]
    return []


def _is_one(fact: AnyFact | None) -> bool:
    return isinstance(fact, Fact) and fact.static is not None and all(d == 1 for d in fact.static)


def _fits_slot(fact: AnyFact | None) -> bool:
    """Whether a slot can hold a value, and its scan output, which has one axis more."""
    return isinstance(fact, Fact) and fact.shape is not None and len(fact.shape) < native.max_rank


def _scan_outputs(
    node: Node, body: NativeBody
) -> list[tuple[int, list[int], int, bool, bool, bool]]:
    """Return the scan outputs of Loop and Scan, as arguments of `ControlSpec.add_scan_output`.

    The dims are those of one iteration, 0 where they are not known. They are the shape of an empty
    result, if the body never runs.
    """
    if node.op.name == "If":
        return []
    from sardonyx.ops.control.collect import JOINED_ELEMENTS, STACKED  # most programs have no loops

    is_loop = node.op.name == "Loop"
    # The outputs of the body before the scan outputs: the condition (Loop) and the loop state.
    n_state = len(node.inputs) - (1 if is_loop else node.attrs["num_scan_inputs"])
    if is_loop:
        n_state = max(1, n_state)  # the node may have no inputs at all, the body has its condition
    facts, zeros = body.graph.zero_trip_facts()[n_state:], (0,) * len(body.graph.outputs)
    axes = node.attrs.get("axes" if is_loop else "scan_output_axes") or zeros
    reversals = node.attrs.get("scan_output_directions") or zeros
    join_kinds = node.attrs.get("join_kinds") or zeros
    outputs = []
    for fact, axis, is_reversed, kind in zip(facts, axes, reversals, join_kinds, strict=False):
        assert isinstance(fact, Fact)
        is_joined = kind == JOINED_ELEMENTS
        dims = [d if isinstance(d, int) else 0 for d in fact.dims]
        along = axis_of(axis, fact.rank + (0 if is_joined else 1))
        outputs.append(
            (fact.dtype.onnx, dims, along, bool(is_reversed), is_joined, kind != STACKED)
        )
    return outputs


def _scan_inputs(node: Node) -> list[tuple[int, bool]]:
    """Return axis and direction of the inputs that a Scan slices, as for `add_scan_input`."""
    if node.op.name != "Scan":
        return []
    n = node.attrs["num_scan_inputs"]
    axes = node.attrs["scan_input_axes"] or (0,) * n
    reversals = node.attrs["scan_input_directions"] or (0,) * n
    values = node.inputs[-n:]
    ranks = [v.tensor.rank for v in values if v is not None]
    return [(axis_of(a, rank), bool(r)) for a, rank, r in zip(axes, ranks, reversals, strict=True)]

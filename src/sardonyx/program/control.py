"""If, Loop and Scan whose bodies are native: how native code is told of them."""

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
from sardonyx.program.flat import ABSENT, SegmentBuilder
from sardonyx.weights.layouts import Forms, Want, read_form

if TYPE_CHECKING:
    from sardonyx.program.native import NativeSegment
    from sardonyx.program.program import Program

_KINDS: Final = {"If": ControlKind.BRANCH, "Loop": ControlKind.LOOP, "Scan": ControlKind.SCAN}


@frozen
class NativeBody:
    """A body that is one native segment, or none: some only pass values on."""

    graph: Graph
    segment: NativeSegment | None

    @property
    def captures(self) -> list[Value]:
        """What the body takes from outside."""
        return self.graph.captures()

    @property
    def inputs(self) -> list[Value]:
        """All that it reads: its own inputs, then what it takes from outside."""
        return [*self.graph.inputs, *self.captures]

    def taken(self) -> list[str]:
        """The sizes that must be known outside."""
        if self.segment is None:
            return []
        own = {lone_name(d) for v in self.inputs for d in v.tensor.shape or ()}
        own.update(self.segment.gives)
        return [n for n in self.segment.names if n not in own]

    def spec(self, number: Callable[[Any], int], forms: Forms) -> native.ProgramSpec:
        """What native code is given for the body's program."""
        segment = self.segment
        slots: dict[Value | int, int] = {} if segment is None else segment.values
        names = {} if segment is None else segment.names
        # The specs of parts may add names, and what enters and leaves may add slots.
        add_items = None if segment is None else segment.items(number, forms)
        inputs = [(v, slots.setdefault(v, len(slots))) for v in self.inputs]
        outputs = [slots.setdefault(v, len(slots)) for v in self.graph.outputs]
        made = native.ProgramSpec(len(slots), len(names))
        for value, slot in inputs:
            fact = value.tensor
            made.add_input(slot, len(fact.shape or ()), fact.dtype.onnx, ABSENT)
            for axis, size in enumerate(fact.shape or ()):
                if (name := lone_name(size)) in names:
                    made.add_name(slot, axis, names[name])
        for slot in outputs:
            made.add_output(slot)
        add_constants(made, slots, forms)
        if add_items is not None:
            add_items(made)
        return made

    def wants(self) -> Iterator[Want]:
        """The constants that a run of the body reads, in the form that it wants."""
        if self.segment is not None:
            yield from self.segment.wants()
        yield from (read_form(v.const) for v in self.graph.outputs if v.const is not None)


def add_constants(spec: native.ProgramSpec, slots: dict[Value | int, int], forms: Forms) -> None:
    """Tells native code of the slots that hold constants."""
    for v, slot in slots.items():
        if isinstance(v, Value) and v.const is not None:
            address = forms.address(read_form(v.const))
            spec.add_constant(slot, v.const.dtype.onnx, v.const.shape, address)


@frozen
class ControlPart:
    """A control-flow node of a native segment."""

    node: Node
    bodies: tuple[NativeBody, ...]
    slots: tuple[list[int], list[int]]  # of inputs and outputs; -1: not given
    captures: tuple[list[int], ...]  # slots, by body
    names: tuple[list[tuple[int, int]], ...]  # name outside and inside, by body
    gives: list[tuple[int, int, int]]  # slot, axis, name: sizes that are known after it

    def spec(self, number: Callable[[Any], int], forms: Forms) -> native.ControlSpec:
        """What native code is given."""
        made = native.ControlSpec(_KINDS[self.node.op.name], number(self), *self.slots)
        for body, captures, names in zip(self.bodies, self.captures, self.names, strict=True):
            made.add_body(body.spec(number, forms), captures, names)
        for collected in _stacked(self.node, self.bodies[0]):
            made.add_scan_output(*collected)
        for cut in _cuts(self.node):
            made.add_scan_input(*cut)
        return made

    def parts(self) -> Iterator[SegmentBuilder | ControlPart]:
        """The parts of all bodies."""
        for body in self.bodies:
            if body.segment is not None:
                yield from body.segment.all_parts()


def native_bodies(node: Node, programs: dict[str, Program]) -> tuple[NativeBody, ...] | None:
    """The bodies of a node if native code can run them all."""
    from sardonyx.program.native import NativeSegment

    keys = ("then_branch", "else_branch") if node.op.name == "If" else ("body",)
    if not all(_is_one(f) for f in _steering(node)):
        return None
    bodies = []
    for key in keys:
        program, graph = programs[key], node.attrs[key]
        segments = program.segments
        if len(segments) > 1 or not all(isinstance(s, NativeSegment) for s in segments):
            return None
        if not segments and program.guards:
            return None
        read = (*(v for v in graph.inputs if v.is_used), *graph.captures(), *graph.outputs)
        if not all(_fits(v.fact) for v in read):
            return None
        if not all(isinstance(v.fact, Fact) for v in graph.inputs):
            return None
        segment = segments[0] if segments else None
        assert segment is None or isinstance(segment, NativeSegment)
        bodies.append(NativeBody(graph, segment))
    return tuple(bodies)


def _steering(node: Node) -> list[AnyFact | None]:
    """Facts of the values that decide which way a node goes: each is one number."""
    if node.op.name == "If":
        return [v.fact for v in node.inputs if v is not None]
    if node.op.name == "Loop":
        given = [v.fact for v in node.inputs[:2] if v is not None]
        return [*given, node.attrs["body"].outputs[0].fact]
    return []


def _is_one(fact: AnyFact | None) -> bool:
    return isinstance(fact, Fact) and fact.static is not None and all(d == 1 for d in fact.static)


def _fits(fact: AnyFact | None) -> bool:
    """Whether a slot can hold such a value, and a Loop or Scan what iterations give of it.

    That has one axis more.
    """
    return isinstance(fact, Fact) and fact.shape is not None and len(fact.shape) < native.max_rank


def _stacked(node: Node, body: NativeBody) -> list[tuple[int, list[int], int, bool, bool, bool]]:
    """Type, shape (0 for what is open), axis, direction and kind of what passes put together."""
    if node.op.name == "If":
        return []
    from sardonyx.ops.control.collect import JOINED_ELEMENTS, STACKED  # most programs have no loops

    is_loop = node.op.name == "Loop"
    n = len(node.inputs) - (1 if is_loop else node.attrs["num_scan_inputs"])
    if is_loop:
        n = max(1, n)  # the condition; trip count and condition may not be given at all
    facts, zeros = body.graph.unrun_facts()[n:], (0,) * len(body.graph.outputs)
    axes = node.attrs.get("axes" if is_loop else "scan_output_axes") or zeros
    backward = node.attrs.get("scan_output_directions") or zeros
    joins = node.attrs.get("joins") or zeros
    found = []
    for fact, given, is_back, how in zip(facts, axes, backward, joins, strict=False):
        assert isinstance(fact, Fact)
        is_joined = how == JOINED_ELEMENTS
        dims = [d if isinstance(d, int) else 0 for d in fact.dims]
        axis = axis_of(given, fact.rank + (0 if is_joined else 1))
        found.append((fact.dtype.onnx, dims, axis, bool(is_back), is_joined, how != STACKED))
    return found


def _cuts(node: Node) -> list[tuple[int, bool]]:
    """Axis and direction of what each pass of a Scan gets a part of."""
    if node.op.name != "Scan":
        return []
    n = node.attrs["num_scan_inputs"]
    axes = node.attrs["scan_input_axes"] or (0,) * n
    backward = node.attrs["scan_input_directions"] or (0,) * n
    values = node.inputs[-n:]
    ranks = [v.tensor.rank for v in values if v is not None]
    return [(axis_of(a, rank), bool(b)) for a, rank, b in zip(axes, ranks, backward, strict=True)]

"""If, Loop and Scan whose bodies are native: how native code is told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from sardonyx.frozen import frozen
from sardonyx.graph.dim import lone_name
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.ops.rules import axis_of
from sardonyx.program.flat import ABSENT, SegmentBuilder
from sardonyx.weights.forms import Forms, read_form

if TYPE_CHECKING:
    from sardonyx.program.native import NativeSegment
    from sardonyx.program.program import Program

_KINDS: Final = {"If": 0, "Loop": 1, "Scan": 2}


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

    def sequence(self, number: Callable[[Any], int], forms: Forms) -> tuple[Any, ...]:
        """What native code is given for the body's program."""
        segment = self.segment
        slots: dict[Value | int, int] = {} if segment is None else segment.values
        names = {} if segment is None else segment.names
        items = [] if segment is None else segment.items(number, forms)  # may add names
        inputs, bound = [], []
        for value in self.inputs:
            fact, slot = value.tensor, slots.setdefault(value, len(slots))
            inputs.append((slot, len(fact.shape or ()), fact.dtype.onnx, ABSENT))
            for axis, size in enumerate(fact.shape or ()):
                if (name := lone_name(size)) in names:
                    bound.append((slot, axis, names[name]))
        outputs = [slots.setdefault(v, len(slots)) for v in self.graph.outputs]
        constants = constant_slots(slots, forms)
        return ((len(slots), len(names)), inputs, outputs, bound, [], constants, items)


def constant_slots(slots: dict[Value | int, int], forms: Forms) -> list[tuple[Any, ...]]:
    """Slots that hold constants: slot, type, shape and address."""
    return [
        (slot, v.const.dtype.onnx, list(v.const.shape), forms.address(read_form(v.const)))
        for v, slot in slots.items()
        if isinstance(v, Value) and v.const is not None
    ]


@frozen
class ControlPart:
    """A control-flow node of a native segment."""

    node: Node
    bodies: tuple[NativeBody, ...]
    slots: tuple[list[int], list[int]]  # of inputs and outputs; -1: not given
    captures: tuple[list[int], ...]  # slots, by body
    names: tuple[list[tuple[int, int]], ...]  # name outside and inside, by body
    gives: list[tuple[int, int, int]]  # slot, axis, name: sizes that are known after it

    def arrays(self, number: Callable[[Any], int], forms: Forms) -> tuple[Any, ...]:
        """What native code is given."""
        bodies = [
            (body.sequence(number, forms), captures, names)
            for body, captures, names in zip(self.bodies, self.captures, self.names, strict=True)
        ]
        stacked, cuts = _stacked(self.node, self.bodies[0]), _cuts(self.node)
        kind = _KINDS[self.node.op.name]
        return (kind, number(self), bodies, *self.slots, stacked, cuts)

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
        if not all(_is_tensor(v.fact) for v in read):
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


def _is_tensor(fact: AnyFact | None) -> bool:
    return isinstance(fact, Fact) and fact.shape is not None


def _stacked(node: Node, body: NativeBody) -> list[tuple[int, list[int], int, bool, bool, bool]]:
    """Type, shape (0 for what is open), axis, direction and kind of what passes put together."""
    if node.op.name == "If":
        return []
    from sardonyx.ops.collect import JOINED_ELEMENTS, STACKED  # most programs have no loops

    is_loop = node.op.name == "Loop"
    n = len(node.inputs) - (1 if is_loop else node.attrs["num_scan_inputs"])
    if is_loop:
        n = max(1, n)  # the condition; trip count and condition may not be given at all
    values, zeros = body.graph.outputs[n:], (0,) * len(body.graph.outputs)
    axes = node.attrs.get("axes" if is_loop else "scan_output_axes") or zeros
    backward = node.attrs.get("scan_output_directions") or zeros
    joins = node.attrs.get("joins") or zeros
    found = []
    for value, given, is_back, how in zip(values, axes, backward, joins, strict=False):
        fact, is_joined = value.tensor, how == JOINED_ELEMENTS
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

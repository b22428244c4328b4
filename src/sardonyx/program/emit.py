"""Emits the program of a scheduled graph: numbers its values and compiles nodes into segments."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from sardonyx.errors import InternalError, InvalidGraph
from sardonyx.graph.dim import lone_name
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import assumptions
from sardonyx.memory import LifetimePlan, plan
from sardonyx.memory.limit import device_limits
from sardonyx.place import HOST, Placement
from sardonyx.place.provider import CompiledNode, Region
from sardonyx.program.expected import Expected, expected
from sardonyx.program.native import NativeSegment
from sardonyx.program.native_items import complete_interface
from sardonyx.program.program import ABSENT, Input, Output, Program
from sardonyx.program.segments import Segmenter, split_guards
from sardonyx.schedule import Schedule
from sardonyx.weights.layouts import LayoutCache


def emit(
    placement: Placement,
    schedule: Schedule,
    memory: LifetimePlan,
    layouts: LayoutCache | None = None,
) -> Program:
    """Return the program of a graph, bodies included; `layouts` may have prepacked weights."""
    return Emitter(placement, schedule, memory, layouts=layouts).program(frozenset())


class Emitter:
    """Emits one graph; each body has an emitter of its own, with its own slots."""

    def __init__(
        self,
        placement: Placement,
        schedule: Schedule,
        memory: LifetimePlan,
        outer: Emitter | None = None,
        layouts: LayoutCache | None = None,
    ) -> None:
        self.placement = placement
        self.graph = schedule.graph
        self.schedule = schedule
        self.memory = memory
        self.outer = outer
        self.slots: dict[Value, int] = {}
        self.constants: list[Value] = []
        self.bodies: list[Program] = []
        # One cache for all bodies: a weight that several read is prepacked once.
        self.layouts: LayoutCache = outer.layouts if outer is not None else layouts or LayoutCache()

    def slot(self, value: Value | None) -> int:
        """Return the slot of a value; the first call assigns it."""
        if value is None:
            return ABSENT
        slot = self.slots.get(value)
        if slot is None:
            slot = self.slots[value] = len(self.slots)
            if value.const is not None:
                self.constants.append(value)
        return slot

    def program(self, known: frozenset[str]) -> Program:
        """Return the program; `known` are the named dims that the outer program has resolved."""
        _check_updates(self.graph)
        inputs = tuple(self._input(v) for v in self.graph.inputs)
        captures: tuple[tuple[int, int], ...] = ()
        if self.outer is not None:
            captures = tuple((self.outer.slot(v), self.slot(v)) for v in self.graph.captures())
        bound = known | {name for i in inputs for _, name in i.sizes}
        # All guards that inference found, also those of nodes that passes removed: the facts of
        # other values still rely on them.
        assumed = assumptions(self.graph) if self.outer is None else ()
        guards = [*self.graph.scope.guards, *assumed]
        initial, deferred = split_guards(dict.fromkeys(guards), bound)
        segmenter = Segmenter(self, set(bound), initial, deferred)
        segments = segmenter.segments()
        if self.outer is None and len(segments) == 1 and isinstance(segments[0], NativeSegment):
            complete_interface(self, segments[0])
        outputs = self._outputs()  # before the slots are counted: an output may be a constant
        has_devices = bool(self.placement.homes)
        is_native_first = bool(segments) and isinstance(segments[0], NativeSegment)
        return Program(
            segments=segments,
            inputs=inputs,
            outputs=outputs,
            constants=tuple(
                (self.slots[v], v.const) for v in self.constants if v.const is not None
            ),
            captures=captures,
            guards=() if is_native_first else initial,  # the native segment checks them itself
            expects=() if self.outer is None else _expected_inputs(inputs, bound),
            final_guards=tuple(segmenter.ready) if segments else (),
            n_slots=len(self.slots),
            plan=self.memory,
            bodies=tuple(self.bodies),
            layouts=self.layouts,
            devices=self.placement.devices if has_devices else {},
            limits=device_limits(self.placement, self.memory) if has_devices else (),
        )

    def _input(self, value: Value) -> Input:
        fact = _fact(value)
        shape = fact.shape or () if isinstance(fact, Fact) else ()
        return Input(
            name=value.name,
            slot=self.slot(value),
            fact=fact,
            sizes=tuple((i, n) for i, d in enumerate(shape) if (n := lone_name(d)) is not None),
            default=self.graph.defaults.get(value),
            device=self.placement.homes.get(value, HOST),
            is_updated=any(slot in n.op.updates.values() for n, slot in value.uses),
        )

    def _outputs(self) -> tuple[Output, ...]:
        homes = self.placement.homes
        return tuple(
            Output(v.name, self.slot(v), _fact(v), homes.get(v, HOST), zero_trip)
            for v, zero_trip in zip(self.graph.outputs, self.graph.zero_trip_facts(), strict=True)
        )

    def compile(
        self, node: Node, bound: AbstractSet[str]
    ) -> tuple[CompiledNode, dict[str, Program]]:
        """Compile a node by its provider; return the step and the programs of its bodies."""
        bodies: dict[Node, dict[str, Program]] = {}
        if node.op.has_bodies:
            known = frozenset(bound)
            bodies[node] = {key: self._body(graph, known) for key, graph in node.subgraphs}
            self.bodies.extend(bodies[node].values())
        (step,) = self.placement.where[node].compile(Region((node,)), bodies)
        return step, bodies.get(node, {})

    def _body(self, graph: Graph, known: frozenset[str]) -> Program:
        # Bodies are scheduled with their graph; lifetimes are planned for each by itself.
        schedule = self.schedule.bodies[graph]
        return Emitter(self.placement, schedule, plan(schedule), self).program(known)


def _check_updates(graph: Graph) -> None:
    """Raise if a node updates anything but an input that every run feeds, or its next version."""
    for node in graph.nodes:
        for slot in node.op.updates.values():
            value = node.inputs[slot] if slot < len(node.inputs) else None
            if value is None or (value.node is not None and value.index in value.node.op.updates):
                continue
            if value not in graph.inputs or value in graph.defaults or graph.owner is not None:
                raise InvalidGraph(
                    f"{node.op} updates {value} in place, which is not an input of the model",
                    node=node,
                    hint="make it an input without a default, and feed an array to update",
                )


def _expected_inputs(inputs: Sequence[Input], bound: AbstractSet[str]) -> tuple[Expected, ...]:
    """Return the checks of a body's inputs.

    Among dims with the same new name, the last sets its size (as `Body` does), the others are
    compared with it.
    """
    last = {
        name: (position, axis, name)
        for position, each in enumerate(inputs)
        for axis, name in each.sizes
    }
    return expected([i.fact for i in inputs], bound, last.values())


def _fact(value: Value) -> AnyFact:
    if value.fact is None:
        raise InternalError(f"{value.name} has no fact")
    return value.fact

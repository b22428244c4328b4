"""Emit: numbers the values, compiles each node by its provider, and lays out the segments."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from sardonyx.errors import InternalError
from sardonyx.graph.dim import lone_name
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import Guard
from sardonyx.memory import Plan, plan
from sardonyx.place import Placement
from sardonyx.place.provider import Region
from sardonyx.program.program import ABSENT, Input, Output, Program, PythonSegment
from sardonyx.schedule import Schedule, order


def emit(placement: Placement, schedule: Schedule, memory: Plan) -> Program:
    """The program of a scheduled graph, bodies included."""
    return _Emitter(placement, schedule, memory).program(frozenset())


def _body(placement: Placement, graph: Graph, known: frozenset[str], outer: _Emitter) -> Program:
    schedule = order(graph)
    return _Emitter(placement, schedule, plan(schedule), outer).program(known)


class _Emitter:
    """Emits one graph; those of bodies are emitted by emitters of their own."""

    def __init__(
        self, placement: Placement, schedule: Schedule, memory: Plan, outer: _Emitter | None = None
    ) -> None:
        self.placement = placement
        self.graph = schedule.graph
        self.schedule = schedule
        self.memory = memory
        self.outer = outer
        self.slots: dict[Value, int] = {}
        self.constants: list[Value] = []

    def slot(self, value: Value | None) -> int:
        """The number of a value."""
        if value is None:
            return ABSENT
        found = self.slots.get(value)
        if found is None:
            found = self.slots[value] = len(self.slots)
            if value.const is not None:
                self.constants.append(value)
        return found

    def program(self, known: frozenset[str]) -> Program:
        """Everything of the graph. `known` are the size names that an outer program has bound."""
        inputs = tuple(self._input(v) for v in self.graph.inputs)
        captures: tuple[tuple[int, int], ...] = ()
        if self.outer is not None:
            captures = tuple((self.outer.slot(v), self.slot(v)) for v in self.graph.captures())
        bound = known | {name for i in inputs for _, name in i.sizes}
        # A pass may have removed the node that needed a guard: other facts still rest on it.
        entry, waiting = _ready(dict.fromkeys(self.graph.scope.found), bound)
        segments = self._segments(set(bound), waiting)
        outputs = tuple(Output(v.name, self.slot(v), _fact(v)) for v in self.graph.outputs)
        return Program(
            segments=segments,
            inputs=inputs,
            outputs=outputs,
            constants=tuple(
                (self.slots[v], v.const) for v in self.constants if v.const is not None
            ),
            captures=captures,
            guards=entry,
            n_slots=len(self.slots),
            plan=self.memory,
        )

    def _input(self, value: Value) -> Input:
        fact = _fact(value)
        shape = fact.shape or () if isinstance(fact, Fact) else ()
        return Input(
            name=value.name,
            slot=self.slot(value),
            fact=fact,
            sizes=tuple((i, n) for i, d in enumerate(shape) if (n := lone_name(d)) is not None),
            fixed=tuple((i, d) for i, d in enumerate(shape) if isinstance(d, int)),
            default=self.graph.defaults.get(value),
        )

    def _segments(self, bound: set[str], waiting: list[Guard]) -> tuple[PythonSegment, ...]:
        """A segment per node; a guard is checked as soon as all sizes in it are bound."""
        segments = []
        has_news = False
        for node, frees in zip(self.schedule.nodes, self.memory.frees, strict=True):
            inputs = tuple(self.slot(v) for v in node.inputs)
            bodies: dict[Node, dict[str, Program]] = {}
            if node.op.has_bodies:
                known = frozenset(bound)
                bodies[node] = {k: _body(self.placement, g, known, self) for k, g in node.subgraphs}
            provider = self.placement.where[node]
            (step,) = provider.compile(Region((node,)), bodies)
            outputs = tuple(self.slot(v) for v in node.outputs)
            guards: tuple[Guard, ...] = ()
            if has_news:
                guards, waiting = _ready(waiting, bound)
            binds = self._binds(node, bound)
            has_news = bool(binds and waiting)
            segments.append(
                PythonSegment(
                    node,
                    step.call,
                    step.kernel,
                    provider.name,
                    inputs,
                    outputs,
                    tuple(self.slots[v] for v in frees if v in self.slots),
                    guards,
                    binds,
                )
            )
        return tuple(segments)

    def _binds(self, node: Node, bound: set[str]) -> tuple[tuple[int, int, str], ...]:
        """Sizes that become known when the node has run."""
        binds = []
        for position, value in enumerate(node.outputs):
            fact = value.fact
            if not isinstance(fact, Fact) or fact.shape is None:
                continue
            for axis, d in enumerate(fact.shape):
                name = lone_name(d)
                if name is not None and name not in bound:
                    bound.add(name)
                    binds.append((position, axis, name))
        return tuple(binds)


def _ready(
    guards: Iterable[Guard], bound: AbstractSet[str]
) -> tuple[tuple[Guard, ...], list[Guard]]:
    """Guards whose sizes are all bound, and those that must wait."""
    ready: list[Guard] = []
    waiting: list[Guard] = []
    for guard in guards:
        (ready if guard.symbols <= bound else waiting).append(guard)
    return tuple(ready), waiting


def _fact(value: Value) -> AnyFact:
    if value.fact is None:
        raise InternalError(f"{value.name} has no fact")
    return value.fact

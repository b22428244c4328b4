"""Emit: numbers the values, compiles each node by its provider, and lays out the segments."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from collections.abc import Set as AbstractSet

import sardonyx._native as native
from sardonyx.base.records import field, mutable
from sardonyx.errors import InternalError
from sardonyx.graph.dim import Dim, lone_name, symbols
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import Guard, assumptions
from sardonyx.memory import LifetimePlan, plan
from sardonyx.memory.limit import device_limits
from sardonyx.place import HOST, DeviceProvider, Placement, has_device
from sardonyx.place.lowered import Bodies, Call, Lowered, Zipped, told_sizes
from sardonyx.place.provider import Region, Step
from sardonyx.program.control import ControlPart, NativeBody, native_bodies
from sardonyx.program.expected import Expected, expected
from sardonyx.program.flat import Growth, SegmentBuilder
from sardonyx.program.native import NativeSegment
from sardonyx.program.program import ABSENT, Input, Output, Program, PythonSegment, Segment
from sardonyx.program.region import RegionSegment
from sardonyx.schedule import Schedule, Search
from sardonyx.weights.layouts import Forms


def emit(
    placement: Placement, schedule: Schedule, memory: LifetimePlan, forms: Forms | None = None
) -> Program:
    """The program of a scheduled graph, bodies included; `forms` may have some weights packed."""
    return _Emitter(placement, schedule, memory, forms=forms).program(frozenset())


def _body(placement: Placement, graph: Graph, known: frozenset[str], outer: _Emitter) -> Program:
    schedule = outer.schedule.bodies[graph]
    return _Emitter(placement, schedule, plan(schedule), outer).program(known)


Binds = tuple[tuple[int, int, str], ...]  # output, axis, name


@mutable
class _Part:
    """Nodes of a native segment whose sizes are all known before the first of them runs."""

    nodes: list[tuple[Node, Lowered]] = field(default_factory=list)
    bodies: tuple[NativeBody, ...] = ()  # of the one node, if that is control flow
    guards: list[Guard] = field(default_factory=list)
    resolved: set[str] = field(default_factory=set)  # names that its first node settles
    binds: Binds = ()  # sizes that are known when the control flow has run


class _Emitter:
    """Emits one graph; those of bodies are emitted by emitters of their own."""

    def __init__(
        self,
        placement: Placement,
        schedule: Schedule,
        memory: LifetimePlan,
        outer: _Emitter | None = None,
        forms: Forms | None = None,
    ) -> None:
        self.placement = placement
        self.graph = schedule.graph
        self.schedule = schedule
        self.memory = memory
        self.outer = outer
        self.slots: dict[Value, int] = {}
        self.constants: list[Value] = []
        self.bodies: list[Program] = []
        self.forms: Forms = outer.forms if outer is not None else forms or Forms()

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
        found = [*self.graph.scope.found, *(assumptions(self.graph) if self.outer is None else ())]
        entry, waiting = _ready(dict.fromkeys(found), bound)
        layout = _Layout(self, set(bound), entry, waiting)
        segments = layout.segments()
        homes = self.placement.homes
        outputs = tuple(
            Output(v.name, self.slot(v), _fact(v), homes.get(v, HOST), unrun)
            for v, unrun in zip(self.graph.outputs, self.graph.unrun_facts(), strict=True)
        )
        is_native_first = bool(segments) and isinstance(segments[0], NativeSegment)
        return Program(
            segments=segments,
            inputs=inputs,
            outputs=outputs,
            constants=tuple(
                (self.slots[v], v.const) for v in self.constants if v.const is not None
            ),
            captures=captures,
            guards=() if is_native_first else entry,
            expects=() if self.outer is None else self._entry(inputs, bound),
            closing=tuple(layout.ready) if segments else (),
            n_slots=len(self.slots),
            plan=self.memory,
            bodies=tuple(self.bodies),
            forms=self.forms,
            devices=self.placement.devices if homes else {},
            limits=device_limits(self.placement, self.memory) if homes else (),
        )

    def _entry(self, inputs: Sequence[Input], bound: AbstractSet[str]) -> tuple[Expected, ...]:
        """What a body is called with: of sizes with one new name, the last gives it its size."""
        last = {
            name: (position, axis, name)
            for position, given in enumerate(inputs)
            for axis, name in given.sizes
        }
        return expected([i.fact for i in inputs], bound, last.values())

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
        )

    def compile(self, node: Node, bound: AbstractSet[str]) -> tuple[Step, dict[str, Program]]:
        """What the node's provider makes of it, and the programs of its bodies."""
        bodies: dict[Node, dict[str, Program]] = {}
        if node.op.has_bodies:
            known = frozenset(bound)
            bodies[node] = {k: _body(self.placement, g, known, self) for k, g in node.subgraphs}
            self.bodies.extend(bodies[node].values())
        (step,) = self.placement.where[node].compile(Region((node,)), bodies)
        return step, bodies.get(node, {})


class _Layout:
    """The segments of one graph: runs of native nodes, and every other node by itself."""

    def __init__(
        self,
        emitter: _Emitter,
        bound: set[str],
        entry: Sequence[Guard],
        waiting: list[Guard],
    ) -> None:
        self.emitter = emitter
        self.bound = bound
        self.ready = list(entry)  # guards that hold nothing up but the next segment
        self.waiting = waiting
        self.done: list[Segment] = []
        self.parts: list[_Part] = []  # of the native segment under way
        self.region: list[Node] = []  # of the device's segment under way
        self.frees: list[Value] = []

    def segments(self) -> tuple[Segment, ...]:
        """All of the graph's nodes; a guard is checked as soon as all sizes in it are bound."""
        emitter = self.emitter
        for node, frees in zip(emitter.schedule.nodes, emitter.memory.frees, strict=True):
            provider = emitter.placement.where[node]
            if has_device(provider) and not node.op.has_bodies:
                self._add_to_region(node, provider)
                self.frees.extend(frees)
                continue
            self._flush_region()
            step, bodies = emitter.compile(node, self.bound)
            if isinstance(step.lowered, Bodies):
                inside = native_bodies(node, bodies)
                if inside is not None:
                    self._add_control(node, inside)
                    self.frees.extend(frees)
                    continue
            elif step.lowered is not None and self._fits(node, step.lowered):
                self._add(node, step.lowered)
                self.frees.extend(frees)
                continue
            self._flush()
            self._python(node, step, frees)
        if self.ready and self.parts:  # what the last part settled, and facts outside rest on
            self.parts.append(_Part(guards=self.ready))
            self.ready = []
        self._flush()
        return tuple(self.done)

    def _fits(self, node: Node, lowered: Lowered) -> bool:
        """Whether native code can know the node's sizes: before it runs, or from its data."""
        if isinstance(lowered, Zipped):
            return self.emitter.outer is None
        sizes = [d for v in node.outputs for d in v.tensor.dims if isinstance(d, Dim)]
        unknown = [d for d in sizes if not symbols(d) <= self.bound]
        if unknown and not (_resolves(lowered) and all(lone_name(d) for d in unknown)):
            return False
        known = self.bound.union(*map(symbols, unknown)) if unknown else self.bound
        return all(symbols(d) <= known for d in told_sizes(lowered))

    def _add_control(self, node: Node, bodies: tuple[NativeBody, ...]) -> None:
        if self.ready:  # guards are checked by parts of the other kind
            self.parts.append(_Part(guards=self.ready))
            self.ready = []
        self.parts.append(_Part([(node, Bodies())], bodies, binds=self._binds(node.outputs)))
        self._wake()

    def _add(self, node: Node, lowered: Lowered) -> None:
        news: set[str] = set()
        if not isinstance(lowered, Zipped):
            sizes = [d for v in node.outputs for d in v.tensor.dims if isinstance(d, Dim)]
            news = {n for d in sizes for n in symbols(d)} - self.bound
        if news or not self.parts or self.parts[-1].bodies or self.ready:
            self.parts.append(_Part(resolved=news))
            self.bound |= news
            self._wake()
            self.parts[-1].guards = self.ready
            self.ready = []
        self.parts[-1].nodes.append((node, lowered))

    def _wake(self) -> None:
        """Guards whose sizes are all bound by now are due."""
        due, self.waiting = _ready(self.waiting, self.bound)
        self.ready.extend(due)

    def _python(self, node: Node, step: Step, frees: Sequence[Value]) -> None:
        emitter = self.emitter
        guards, self.ready = tuple(self.ready) if self.done else (), []
        inputs = tuple(emitter.slot(v) for v in node.inputs)
        outputs = tuple(emitter.slot(v) for v in node.outputs)
        binds = self._binds(node.outputs)
        if binds:
            self._wake()
        freed = tuple(emitter.slots[v] for v in frees if v in emitter.slots)
        name = emitter.placement.where[node].name
        kernel = "numpy" if step.lowered is not None else step.kernel
        expects = expected([v.fact for v in node.outputs], self.bound, binds)
        self.done.append(
            PythonSegment(
                node, step.call, kernel, name, inputs, outputs, freed, guards, binds, expects
            )
        )

    def _binds(self, values: Sequence[Value]) -> Binds:
        """Sizes that become known when these values are there."""
        binds = []
        for position, value in enumerate(values):
            fact = value.fact
            if not isinstance(fact, Fact) or fact.shape is None:
                continue
            for axis, d in enumerate(fact.shape):
                name = lone_name(d)
                if name is not None and name not in self.bound:
                    self.bound.add(name)
                    binds.append((position, axis, name))
        return tuple(binds)

    def _add_to_region(self, node: Node, provider: DeviceProvider) -> None:
        where = self.emitter.placement.where
        if self.parts or (self.region and where[self.region[0]] is not provider):
            self._flush()
        self.region.append(node)
        facts = (v.fact for v in node.outputs)
        dims = (d for f in facts if isinstance(f, Fact) for d in f.shape or ())
        if not all(symbols(d) <= self.bound for d in dims):  # nodes behind it know its sizes
            self._flush()

    def _flush(self) -> None:
        """Ends the segment under way."""
        if self.parts:
            self.done.append(_native(self.emitter, self.parts, self.frees))
            self.parts, self.frees = [], []
        self._flush_region()

    def _flush_region(self) -> None:
        if not self.region:
            return
        emitter, nodes = self.emitter, tuple(self.region)
        provider = emitter.placement.where[nodes[0]]
        assert has_device(provider)
        inside = set(nodes)
        facts = [v.fact for n in nodes for v in n.outputs]
        dims = [d for f in facts if isinstance(f, Fact) for d in f.shape or ()]
        read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None)
        region = Region(
            nodes,
            tuple(v for v in read if v.const is None and v.node not in inside),
            tuple(v for n in nodes for v in n.outputs if _leaves(v, inside)),
            frozenset(name for d in dims for name in symbols(d)) - self.bound,
        )
        guards, self.ready = tuple(self.ready) if self.done else (), []
        binds = self._binds(region.outputs)  # what stays inside tells nobody
        if binds:
            self._wake()
        self.done.append(
            RegionSegment(
                nodes,
                provider.compile_region(region),
                provider.name,
                tuple(map(emitter.slot, region.inputs)),
                tuple(map(emitter.slot, region.outputs)),
                tuple(emitter.slots[v] for v in self.frees if v in emitter.slots),
                guards,
                binds,
                expected([v.fact for v in region.outputs], self.bound, binds),
            )
        )
        self.region, self.frees = [], []


def _native(emitter: _Emitter, parts: list[_Part], frees: list[Value]) -> NativeSegment:
    names: dict[str, int] = {}
    slots: dict[Value | int, int] = {}

    def slot(value: Value | None) -> int:
        # Bytes that leave a part in another shape only have a slot of their own, without a value.
        return slots.setdefault(len(slots) if value is None else value, len(slots))

    entries = frozenset(emitter.graph.inputs if emitter.outer is None else ())
    made_of, frees_of = [], []
    for part in parts:
        before = len(slots)
        made_of.append(_build(part, names, slot, entries, emitter.schedule.search))
        # Slots without a value are behind others that hold the same bytes.
        frees_of.append([n for v, n in slots.items() if n >= before and isinstance(v, int)])
    for value, last in _last_parts(parts).items():
        if value in slots and not value.n_exits and value.const is None:
            frees_of[last].append(slots[value])
    inside = _inside(parts)
    exported = (v for n in inside for v in n.outputs if v in slots)
    # Those of the model in its order: then a run may hand them out as they are.
    order = {v: i for i, v in enumerate(emitter.graph.outputs)}
    leaving = [v for v in exported if _leaves(v, inside)]
    made = tuple(sorted(leaving, key=lambda v: order.get(v, len(order))))
    read = tuple(
        v for v in slots if isinstance(v, Value) and v.node not in inside and v.const is None
    )
    return NativeSegment(
        parts=tuple(made_of),
        inputs=tuple(emitter.slot(v) for v in read),
        outputs=tuple(emitter.slot(v) for v in made),
        frees=tuple(emitter.slots[v] for v in frees if v in emitter.slots),
        names=names,
        gives=tuple(n for p in made_of for n in _given(p, names)),
        values=slots,
        read=read,
        made=made,
        part_frees=frees_of,
        keys={
            node.outputs[0]: how.keys
            for part in parts
            for node, how in part.nodes
            if isinstance(how, Zipped)
        },
    )


def _inside(parts: list[_Part]) -> dict[Node, None]:
    """The nodes of all parts and of the bodies in them, in order."""
    found: dict[Node, None] = {}
    for part in parts:
        for node, _ in part.nodes:
            found[node] = None
            for _, graph in node.subgraphs:
                found.update(dict.fromkeys(graph.all_nodes()))
    return found


def _last_parts(parts: list[_Part]) -> dict[Value, int]:
    """The last part that makes or reads each value which no other node reads."""
    inside = _inside(parts)
    last: dict[Value, int] = {}
    for index, part in enumerate(parts):
        for node, _ in part.nodes:
            last.update((v, index) for v in (*node.reads(), *node.outputs))
    return {v: i for v, i in last.items() if v.node not in inside or not _leaves(v, inside)}


def _given(part: SegmentBuilder | ControlPart, names: dict[str, int]) -> list[str]:
    """The sizes that are known once a part has run."""
    if isinstance(part, SegmentBuilder):
        return [name for *_, name in part.resolved]
    by_number = {number: name for name, number in names.items()}
    return [by_number[number] for _, _, number in part.gives]


def _build(
    part: _Part,
    names: dict[str, int],
    slot: Callable[[Value | None], int],
    entries: Container[Value],
    order: Search,
) -> SegmentBuilder | ControlPart:
    if part.bodies:
        return _build_control(part, names, slot)
    nodes = {node for node, _ in part.nodes}
    exports = frozenset(v for n in nodes for v in n.outputs if _leaves(v, nodes))
    builder = SegmentBuilder(names, slot, exports, _growths(part.nodes, nodes, entries), order)
    builder.guard(part.guards)
    for position, (node, lowered) in enumerate(part.nodes):
        builder.add(node, lowered)
        if position == 0 and part.resolved:
            builder.resolve(node, part.resolved)
    return builder


def _growths(
    lowered: list[tuple[Node, Lowered]], nodes: Container[Node], entries: Container[Value]
) -> dict[Value, Growth]:
    """Outputs of the model that are one of its inputs (`entries`) with more rows, as caches are.

    Nobody else may read either: they lie with gaps.
    """
    found: dict[Value, Growth] = {}
    axes: dict[Value, int] = {}  # an input has room along one
    calls = ((node, call) for node, call in lowered if isinstance(call, Call))
    for node, call in calls:
        for taken, made, axis in call.grows:
            past, present = call.inputs[taken], node.outputs[made]
            if (
                isinstance(past, Value)
                and past in entries
                and not past.n_exits
                and not isinstance(past.tensor.dims[axis], int)  # else it cannot be fed back
                and present.n_exits == 1
                and all(n in nodes for v in (past, present) for n, _ in v.uses)
                and axes.setdefault(past, axis) == axis
            ):
                found[present] = Growth(past, axis)
    return found


def _build_control(
    part: _Part, names: dict[str, int], slot: Callable[[Value | None], int]
) -> ControlPart:
    ((node, _),), bodies = part.nodes, part.bodies
    known = [
        [(names.setdefault(n, len(names)), body.segment.names[n]) for n in body.taken()]
        if body.segment is not None
        else []
        for body in bodies
    ]
    outputs = [slot(v) for v in node.outputs]
    gives = [
        (outputs[position], axis, names.setdefault(name, len(names)))
        for position, axis, name in part.binds
    ]
    return ControlPart(
        node=node,
        bodies=bodies,
        slots=([ABSENT if v is None else slot(v) for v in node.inputs], outputs),
        captures=tuple([slot(v) for v in body.captures] for body in bodies),
        names=tuple(known),
        gives=gives,
    )


def _leaves(value: Value, nodes: Container[Node]) -> bool:
    """Whether anything but these nodes reads a value."""
    return value.n_exits > 0 or any(node not in nodes for node, _ in value.uses)


def _resolves(lowered: Lowered) -> bool:
    return isinstance(lowered, Call) and native.kernels[lowered.kernel].resolves


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

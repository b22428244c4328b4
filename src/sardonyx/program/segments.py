"""Splits a scheduled graph into segments: native nodes together, regions of devices, Python steps.

Sizes may depend on data (NonZero, Loop). The named dims whose sizes are known at a point are
*bound*; a guard is checked by the first segment or item after all of its dims are bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import sardonyx._native as native
from sardonyx.graph.dim import Dim, Size, lone_name, symbols
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.guard import Guard
from sardonyx.place import DeviceProvider, has_device
from sardonyx.place.lowered import Bodies, Call, Lowered, Zipped, argument_sizes
from sardonyx.place.provider import CompiledNode, Region
from sardonyx.program.control import NativeBody, native_bodies
from sardonyx.program.expected import expected
from sardonyx.program.native_items import Binds, ItemDraft, build_native, is_read_outside
from sardonyx.program.program import PythonSegment, Segment
from sardonyx.program.region import RegionSegment

if TYPE_CHECKING:
    from sardonyx.program.emit import Emitter


class Segmenter:
    """Collects the segments of one graph, in the order of its schedule."""

    def __init__(
        self,
        emitter: Emitter,
        bound: set[str],
        initial_guards: Sequence[Guard],
        deferred_guards: list[Guard],
    ) -> None:
        """`initial_guards` are guards on dims in `bound`, `deferred_guards` all others."""
        self.emitter = emitter
        self.bound = bound
        self.ready = list(initial_guards)  # guards to check before the next segment or item
        self._deferred_guards = deferred_guards
        self._done: list[Segment] = []
        self._drafts: list[ItemDraft] = []  # of the open native segment
        self._region: list[Node] = []  # of the open region segment
        self._frees: list[Value] = []  # of the open segment, native or region

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments of all nodes."""
        emitter = self.emitter
        for node, frees in zip(emitter.schedule.nodes, emitter.memory.frees, strict=True):
            provider = emitter.placement.where[node]
            if has_device(provider) and not node.op.has_bodies:
                self._add_to_region(node, provider)
                self._frees.extend(frees)
                continue
            self._close_region()
            step, bodies = emitter.compile(node, self.bound)
            # Native nodes extend the open segment; any other node ends it.
            if isinstance(step.lowered, Bodies):
                inner = native_bodies(node, bodies)
                if inner is not None:
                    self._add_control(node, inner)
                    self._frees.extend(frees)
                    continue
            elif step.lowered is not None and self._is_native(node, step.lowered):
                self._add_native(node, step.lowered)
                self._frees.extend(frees)
                continue
            self._close()
            self._add_python(node, step, frees)
        # Guards on dims that the last item resolves need an item of their own to check them.
        if self.ready and self._drafts:
            self._drafts.append(ItemDraft(guards=self.ready))
            self.ready = []
        self._close()
        return tuple(self._done)

    def _is_native(self, node: Node, lowered: Lowered) -> bool:
        """Whether native code knows the sizes of a lowered node: beforehand, or from its data."""
        if isinstance(lowered, Zipped):
            return self.emitter.outer is None  # dicts are outputs of the model alone
        unknown = [d for d in _output_dims(node) if not symbols(d) <= self.bound]
        # A kernel resolves single names, not expressions: it sets sizes by output and axis.
        if unknown and not (_resolves(lowered) and all(lone_name(d) for d in unknown)):
            return False
        known = self.bound.union(*map(symbols, unknown)) if unknown else self.bound
        return all(symbols(d) <= known for d in argument_sizes(lowered))

    def _add_control(self, node: Node, bodies: tuple[NativeBody, ...]) -> None:
        if self.ready:  # only segments of kernel steps check guards
            self._drafts.append(ItemDraft(guards=self.ready))
            self.ready = []
        draft = ItemDraft([(node, Bodies())], bodies, binds=self._bind(node.outputs))
        self._drafts.append(draft)
        self._wake_guards()

    def _add_native(self, node: Node, lowered: Lowered) -> None:
        """Add a node to the open item; a node that resolves dims, or guards, begin a new one."""
        new_dims: set[str] = set()
        if not isinstance(lowered, Zipped):
            new_dims = {n for d in _output_dims(node) for n in symbols(d)} - self.bound
        if new_dims or not self._drafts or self._drafts[-1].bodies or self.ready:
            self._drafts.append(ItemDraft(resolved=new_dims))
            self.bound |= new_dims
            self._wake_guards()
            self._drafts[-1].guards = self.ready
            self.ready = []
        self._drafts[-1].nodes.append((node, lowered))

    def _wake_guards(self) -> None:
        """Move guards whose dims are all bound by now to `ready`."""
        ready, self._deferred_guards = split_guards(self._deferred_guards, self.bound)
        self.ready.extend(ready)

    def _take_guards(self) -> tuple[Guard, ...]:
        """Return the guards of a new segment; those of the first are the program's own."""
        guards, self.ready = tuple(self.ready) if self._done else (), []
        return guards

    def _add_python(self, node: Node, step: CompiledNode, frees: Sequence[Value]) -> None:
        emitter = self.emitter
        guards = self._take_guards()
        binds = self._bind(node.outputs)
        if binds:
            self._wake_guards()
        self._done.append(
            PythonSegment(
                node=node,
                call=step.call,
                kernel="numpy" if step.lowered is not None else step.kernel,
                provider=emitter.placement.where[node].name,
                inputs=tuple(map(emitter.slot, node.inputs)),
                outputs=tuple(map(emitter.slot, node.outputs)),
                frees=_slots(emitter, frees),
                guards=guards,
                binds=binds,
                expects=expected([v.fact for v in node.outputs], self.bound, binds),
            )
        )

    def _bind(self, values: Sequence[Value]) -> Binds:
        """Bind the unbound dims of values that a segment returns; return where each is."""
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
        if self._drafts or (self._region and where[self._region[0]] is not provider):
            self._close()
        self._region.append(node)
        # A node that resolves dims ends the region: later ones are compiled with these dims bound.
        if not all(symbols(d) <= self.bound for d in _shape_dims([node])):
            self._close()

    def _close(self) -> None:
        """End the open segment."""
        if self._drafts:
            self._done.append(build_native(self.emitter, self._drafts, self._frees))
            self._drafts, self._frees = [], []
        self._close_region()

    def _close_region(self) -> None:
        if not self._region:
            return
        emitter, nodes = self.emitter, tuple(self._region)
        provider = emitter.placement.where[nodes[0]]
        assert has_device(provider)
        region = _region(nodes, self.bound)
        guards = self._take_guards()
        binds = self._bind(region.outputs)  # values inside of the region are not visible
        if binds:
            self._wake_guards()
        self._done.append(
            RegionSegment(
                nodes=nodes,
                program=provider.compile_region(region),
                provider=provider.name,
                inputs=tuple(map(emitter.slot, region.inputs)),
                outputs=tuple(map(emitter.slot, region.outputs)),
                frees=_slots(emitter, self._frees),
                guards=guards,
                binds=binds,
                expects=expected([v.fact for v in region.outputs], self.bound, binds),
            )
        )
        self._region, self._frees = [], []


def _region(nodes: tuple[Node, ...], bound: AbstractSet[str]) -> Region:
    inside = set(nodes)
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None)
    return Region(
        nodes,
        tuple(v for v in read if v.const is None and v.node not in inside),
        tuple(v for n in nodes for v in n.outputs if is_read_outside(v, inside)),
        frozenset(name for d in _shape_dims(nodes) for name in symbols(d)) - bound,
    )


def _shape_dims(nodes: Iterable[Node]) -> list[Size]:
    """Return the dims of all outputs of known rank."""
    facts = (v.fact for n in nodes for v in n.outputs)
    return [d for f in facts if isinstance(f, Fact) for d in f.shape or ()]


def _output_dims(node: Node) -> list[Dim]:
    """Return the symbolic dims of the outputs of a lowered node."""
    return [d for v in node.outputs for d in v.tensor.dims if isinstance(d, Dim)]


def _slots(emitter: Emitter, values: Iterable[Value]) -> tuple[int, ...]:
    """Return the slots of values; those inside of a segment have none."""
    return tuple(emitter.slots[v] for v in values if v in emitter.slots)


def _resolves(lowered: Lowered) -> bool:
    """Whether a kernel computes the sizes of its outputs from its data."""
    return isinstance(lowered, Call) and native.kernels[lowered.kernel].resolves


def split_guards(
    guards: Iterable[Guard], bound: AbstractSet[str]
) -> tuple[tuple[Guard, ...], list[Guard]]:
    """Return the guards whose dims are all bound, and the others."""
    ready: list[Guard] = []
    deferred_guards: list[Guard] = []
    for guard in guards:
        (ready if guard.symbols <= bound else deferred_guards).append(guard)
    return tuple(ready), deferred_guards

"""Builds a native segment from drafts of its items: slots, lifetimes of slots, growing caches."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING

from sardonyx.base.records import field, mutable
from sardonyx.graph.dtype import STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.guard import Guard
from sardonyx.place.lowered import Call, Lowered, Zipped
from sardonyx.program.control import ControlNode, NativeBody
from sardonyx.program.native import Item, NativeSegment
from sardonyx.program.segment_builder import ABSENT, CacheGrowth, SegmentBuilder

if TYPE_CHECKING:
    from sardonyx.program.emit import Emitter

Binds = tuple[tuple[int, int, str], ...]  # (output, axis, named dim)


@mutable
class ItemDraft:
    """An item to build: nodes whose sizes are all known before the first, or one control node."""

    nodes: list[tuple[Node, Lowered]] = field(default_factory=list)
    bodies: tuple[NativeBody, ...] = ()  # of the one node, if that is control flow
    guards: list[Guard] = field(default_factory=list)
    resolved: set[str] = field(default_factory=set)  # dims that its first node resolves
    binds: Binds = ()  # dims that the outputs of control flow resolve


class _CallSlots:
    """The slots of a native call: values that items exchange, inputs and outputs."""

    def __init__(self) -> None:
        self.by_value: dict[Value | int, int] = {}

    def __call__(self, value: Value | None) -> int:
        """Return the slot of a value, or for None a new slot without a value.

        Those hold bytes that are exported only by aliases, in other shapes.
        """
        slots = self.by_value
        return slots.setdefault(len(slots) if value is None else value, len(slots))

    def without_value(self, first: int) -> list[int]:
        """Return the slots without a value, from a slot on."""
        return [n for v, n in self.by_value.items() if n >= first and isinstance(v, int)]


def build_native(emitter: Emitter, drafts: list[ItemDraft], frees: list[Value]) -> NativeSegment:
    """Build the items and connect them; `frees` are dead after the segment."""
    names: dict[str, int] = {}
    slots = _CallSlots()
    inputs = frozenset(emitter.graph.inputs if emitter.outer is None else ())
    items, item_frees = [], []
    for draft in drafts:
        first = len(slots.by_value)
        items.append(_build(emitter, draft, names, slots, inputs))
        # A slot without a value can be freed immediately: its aliases keep the block alive.
        item_frees.append(slots.without_value(first))
    inside = _all_nodes(drafts)
    # Other slots are freed by their last item, unless they are outputs or constants.
    for value, last in _last_items(drafts, inside).items():
        if value in slots.by_value and not value.n_exits and value.const is None:
            item_frees[last].append(slots.by_value[value])
    outputs = _outputs(emitter, inside, slots.by_value)
    read = tuple(
        v
        for v in slots.by_value
        if isinstance(v, Value) and v.node not in inside and v.const is None
    )
    return NativeSegment(
        items=tuple(items),
        inputs=tuple(emitter.slot(v) for v in read),
        outputs=tuple(emitter.slot(v) for v in outputs),
        frees=tuple(emitter.slots[v] for v in frees if v in emitter.slots),
        names=names,
        resolved_names=tuple(n for item in items for n in _resolved_names(item, names)),
        slots=slots.by_value,
        input_values=read,
        output_values=outputs,
        item_frees=item_frees,
        dict_keys=_dict_keys(drafts),
    )


def _outputs(
    emitter: Emitter, inside: dict[Node, None], slots: Container[Value | int]
) -> tuple[Value, ...]:
    """Return the values that are read after the segment.

    Outputs of the model come first and in its order: then the fast path returns the list of the
    native call as it is.
    """
    order = {v: i for i, v in enumerate(emitter.graph.outputs)}
    produced = (v for n in inside for v in n.outputs if v in slots)
    exported = [v for v in produced if is_read_outside(v, inside)]
    return tuple(sorted(exported, key=lambda v: order.get(v, len(order))))


def complete_interface(emitter: Emitter, segment: NativeSegment) -> None:
    """Give the only segment of a program all its inputs and outputs: a run is one native call.

    Left out so far are inputs that no node reads, and outputs that are inputs or constants; the
    native call copies those. Programs that return a value twice stay as they are: buffers that
    outputs are bound to belong to values.
    """
    graph = emitter.graph
    added = [v for v in graph.inputs if v not in segment.slots]
    passed = [v for v in graph.outputs if v.node is None]
    is_repeated = len(set(graph.outputs)) < len(graph.outputs)
    if is_repeated or not all(_is_plain(v) for v in (*added, *passed)):
        return
    for value in (*added, *passed):
        segment.slots.setdefault(value, len(segment.slots))
    segment.input_values += tuple(added)
    segment.inputs += tuple(emitter.slot(v) for v in added)
    others = tuple(v for v in segment.output_values if v not in graph.outputs)
    segment.output_values = (*graph.outputs, *others)
    segment.outputs = tuple(emitter.slot(v) for v in segment.output_values)


def _is_plain(value: Value) -> bool:
    """Whether a value is a tensor of numbers with a known rank."""
    fact = value.fact
    return isinstance(fact, Fact) and fact.shape is not None and fact.dtype is not STRING


def _dict_keys(drafts: Iterable[ItemDraft]) -> dict[Value, tuple[int | str, ...]]:
    """Return the keys of outputs that are returned as dicts (ZipMap)."""
    lowered = (pair for draft in drafts for pair in draft.nodes)
    return {node.outputs[0]: how.keys for node, how in lowered if isinstance(how, Zipped)}


def _all_nodes(drafts: Iterable[ItemDraft]) -> dict[Node, None]:
    """Return the nodes of all items and of their bodies, in order."""
    nodes: dict[Node, None] = {}
    for draft in drafts:
        for node, _ in draft.nodes:
            nodes[node] = None
            for _, graph in node.subgraphs:
                nodes.update(dict.fromkeys(graph.all_nodes()))
    return nodes


def _last_items(drafts: list[ItemDraft], inside: Container[Node]) -> dict[Value, int]:
    """Return the item that reads a value last, or produces it, of values that end in the segment.

    Inputs of the segment are among them: the call drops its reference after the last reader.
    """
    last: dict[Value, int] = {}
    for index, draft in enumerate(drafts):
        for node, _ in draft.nodes:
            last.update((v, index) for v in (*node.reads(), *node.outputs))
    return {v: i for v, i in last.items() if v.node not in inside or not is_read_outside(v, inside)}


def _resolved_names(item: Item, names: dict[str, int]) -> list[str]:
    """Return the named dims that are resolved once an item has run."""
    if isinstance(item, SegmentBuilder):
        return [name for *_, name in item.resolved]
    by_number = {number: name for name, number in names.items()}
    return [by_number[number] for _, _, number in item.resolved]


def _build(
    emitter: Emitter,
    draft: ItemDraft,
    names: dict[str, int],
    slot: _CallSlots,
    inputs: Container[Value],
) -> Item:
    if draft.bodies:
        return _build_control(draft, names, slot)
    nodes = {node for node, _ in draft.nodes}
    exports = frozenset(v for n in nodes for v in n.outputs if is_read_outside(v, nodes))
    growths = _growths(draft.nodes, nodes, inputs)
    builder = SegmentBuilder(names, slot, exports, growths, emitter.schedule.search)
    builder.guard(draft.guards)
    # Only the first node of a draft resolves dims: a later one would begin an item.
    for position, (node, lowered) in enumerate(draft.nodes):
        builder.add(node, lowered)
        if position == 0 and draft.resolved:
            builder.resolve(node, draft.resolved)
    return builder


def _growths(
    lowered: list[tuple[Node, Lowered]], nodes: Container[Node], inputs: Container[Value]
) -> dict[Value, CacheGrowth]:
    """Return outputs of the model that are one of its `inputs` with rows appended (KV caches).

    Such a pair shares a block with reserved rows. No other node may read either: they have strides.
    """
    growths: dict[Value, CacheGrowth] = {}
    axes: dict[Value, int] = {}  # a block has reserved rows along one axis
    calls = ((node, call) for node, call in lowered if isinstance(call, Call))
    for node, call in calls:
        for source, target, axis in call.grows:
            past, present = call.inputs[source], node.outputs[target]
            if (
                isinstance(past, Value)
                and past in inputs
                and not past.n_exits
                and present.n_exits == 1
                and all(n in nodes for v in (past, present) for n, _ in v.uses)
                and axes.setdefault(past, axis) == axis
            ):
                growths[present] = CacheGrowth(past, axis)
    return growths


def _build_control(
    draft: ItemDraft, names: dict[str, int], slot: Callable[[Value | None], int]
) -> ControlNode:
    ((node, _),), bodies = draft.nodes, draft.bodies
    # Dims of bodies that the outer program resolves: each program numbers names by itself.
    known = [
        [(names.setdefault(n, len(names)), body.segment.names[n]) for n in body.outer_names()]
        if body.segment is not None
        else []
        for body in bodies
    ]
    outputs = [slot(v) for v in node.outputs]
    resolved = [
        (outputs[position], axis, names.setdefault(name, len(names)))
        for position, axis, name in draft.binds
    ]
    return ControlNode(
        node=node,
        bodies=bodies,
        input_slots=[ABSENT if v is None else slot(v) for v in node.inputs],
        output_slots=outputs,
        captures=tuple([slot(v) for v in body.captures] for body in bodies),
        names=tuple(known),
        resolved=resolved,
    )


def is_read_outside(value: Value, nodes: Container[Node]) -> bool:
    """Whether a value is an output of a graph or is read by a node outside of `nodes`."""
    return value.n_exits > 0 or any(node not in nodes for node, _ in value.uses)

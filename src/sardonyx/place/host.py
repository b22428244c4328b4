"""What stays on the host beside a device is cut out and lowered for the CPU, part by part."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.place import Placement, Refusals
from sardonyx.place.provider import has_device

Lower = Callable[[Graph], None]
Claim = Callable[[list[Node]], None]


@frozen
class Part:
    """Nodes of a graph in one of their own, which reads and gives stand-ins for values of it."""

    whole: Graph
    graph: Graph
    read: tuple[Value, ...]  # of the whole, for each input
    given: tuple[Value, ...]  # stand-ins in the whole, for each output

    def put_back(self) -> list[Node]:
        """Move the nodes, whatever has become of them, back to the whole graph; return them."""
        made, nodes = self.graph.outputs, list(self.graph.nodes)
        self.graph.set_outputs(())
        self.whole.adopt(nodes)
        for stand_in, value in zip(self.given, made, strict=True):
            self.whole.replace(stand_in, value)
        for stand_in, value in zip(self.graph.inputs, self.read, strict=True):
            self.whole.replace(stand_in, value)
        return nodes


def lower_host_parts(placement: Placement, lower: Lower, claim: Claim) -> None:
    """Lowers each part that is on the host; `claim` finds providers for what it becomes."""
    graphs = [g for g in placement.graph.family() if g.owner is None or _is_away(placement, g)]
    for graph in graphs:
        for nodes in _parts(placement, graph):
            part = _cut(graph, nodes)
            said: dict[str, Refusals] = {}
            for node in part.graph.all_nodes():
                del placement.where[node]
                said[_called(node)] = placement.refusals.pop(node, ())
            lower(part.graph)
            lowered = part.put_back()
            claim(lowered)  # not before: a provider may note what a node reads
            for node in lowered:
                if before := said.get(_called(node)):
                    placement.refusals[node] = (*before, *placement.refusals.get(node, ()))


def _called(node: Node) -> str:
    """What lowering mostly leaves of a node: its name, or that of what it makes."""
    return node.name or node.outputs[0].name


def _is_away(placement: Placement, body: Graph) -> bool:
    return body.owner is not None and has_device(placement.where[body.owner])


def _parts(placement: Placement, graph: Graph) -> list[list[Node]]:
    """The host's nodes by how often a path to them goes to a device and comes back.

    So none leaves a part and enters it again: whatever joins nodes of one makes no cycle.
    """
    turns: dict[Node, int] = {}
    parts: dict[int, list[Node]] = {}
    for node in graph.sorted_nodes():
        is_away = has_device(placement.where[node])
        makers = (v.node for v in node.reads() if v.node in turns)
        turns[node] = max(
            (turns[m] + (not is_away and has_device(placement.where[m])) for m in makers if m),
            default=0,
        )
        if not is_away:
            parts.setdefault(turns[node], []).append(node)
    return list(parts.values())


def _cut(graph: Graph, nodes: list[Node]) -> Part:
    """Takes nodes out of a graph, with the bodies below them."""
    part = Graph(graph.name)
    part.scope = graph.scope
    part.whole = graph
    part.adopt(nodes)
    inside = set(part.all_nodes())
    given: list[tuple[Value, Value]] = []
    for value in (v for n in nodes for v in n.outputs):
        outside = [(n, slot) for n, slot in value.uses if n not in inside]
        if outside or _exits(graph, value):
            given.append((value, Value("", value.fact)))
            _exchange(graph, *given[-1], outside)
    read = part.captures()
    part.set_inputs(Value(v.name, v.fact) for v in read)
    stand_ins = [*zip(read, part.inputs, strict=True)]
    stand_ins += ((v, Value(v.name, v.fact)) for v in _constants(part))
    for value, stand_in in stand_ins:
        _exchange(part, value, stand_in, [use for use in value.uses if use[0] in inside])
    part.set_outputs(v for v, _ in given)
    return Part(graph, part, tuple(read), tuple(s for _, s in given))


def _constants(part: Graph) -> dict[Value, None]:
    """Those that a part reads, which may be read elsewhere too."""
    read = (v for n in part.all_nodes() for v in n.inputs if v is not None)
    returned = (v for g in part.family() for v in g.outputs)
    return dict.fromkeys(v for v in (*read, *returned) if v.const is not None)


def _exits(graph: Graph, value: Value) -> bool:
    return value.n_exits > 0 and any(value in g.outputs for g in graph.family())


def _exchange(graph: Graph, old: Value, new: Value, uses: list[tuple[Node, int]]) -> None:
    """These readers of one value, and all outputs of a graph that are it, become the other's."""
    for reader, slot in uses:
        reader.graph.set_input(reader, slot, new)
    for each in graph.family() if old.n_exits else ():
        if old in each.outputs:
            each.set_outputs([new if v is old else v for v in each.outputs])

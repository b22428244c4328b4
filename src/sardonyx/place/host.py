"""Lowers host subgraphs: nodes that devices leave to the CPU are extracted and lowered for it.

A graph for a device is lowered with the passes for devices, which leave out fusions that only CPU
kernels have. The nodes that no device claims get these afterwards, in graphs of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.place import Placement, Refusals
from sardonyx.place.provider import has_device

Lower = Callable[[Graph], None]
Claim = Callable[[list[Node]], None]


@frozen
class HostSubgraph:
    """Nodes extracted from a graph; placeholders connect both while passes rewrite them."""

    parent: Graph
    graph: Graph  # its inputs are placeholders of `captures`
    captures: tuple[Value, ...]  # values of the parent, by input
    placeholders: tuple[Value, ...]  # values in the parent, by output

    def put_back(self) -> list[Node]:
        """Move the nodes, as the passes left them, back to the parent; return them."""
        outputs, nodes = self.graph.outputs, list(self.graph.nodes)
        self.graph.set_outputs(())
        self.parent.adopt(nodes)
        for placeholder, value in zip(self.placeholders, outputs, strict=True):
            self.parent.replace(placeholder, value)
        for placeholder, value in zip(self.graph.inputs, self.captures, strict=True):
            self.parent.replace(placeholder, value)
        return nodes


def lower_host_subgraphs(placement: Placement, lower: Lower, claim: Claim) -> None:
    """Lower the host subgraphs; `claim` finds providers for the resulting nodes."""
    # Bodies of a host node are extracted with it; those of a device node are graphs of their own.
    graphs = [g for g in placement.graph.family() if g.owner is None or _is_on_device(placement, g)]
    for graph in graphs:
        for nodes in _host_groups(placement, graph):
            subgraph = _extract(graph, nodes)
            refusals: dict[str, Refusals] = {}
            for node in subgraph.graph.all_nodes():
                del placement.where[node]
                refusals[_label(node)] = placement.refusals.pop(node, ())
            lower(subgraph.graph)
            lowered = subgraph.put_back()
            claim(lowered)  # not before: claims of a provider may read the inputs of a node
            for node in lowered:
                if before := refusals.get(_label(node)):
                    placement.refusals[node] = (*before, *placement.refusals.get(node, ()))


def _label(node: Node) -> str:
    """Return what most passes keep of a node: its name, or that of its output."""
    return node.name or node.outputs[0].name


def _is_on_device(placement: Placement, body: Graph) -> bool:
    return body.owner is not None and has_device(placement.where[body.owner])


def _host_groups(placement: Placement, graph: Graph) -> list[list[Node]]:
    """Group the host nodes by the most times that a path to them returns from a device.

    No path leaves a group and enters it again, so fusing nodes of a group creates no cycle.
    """
    returns: dict[Node, int] = {}
    groups: dict[int, list[Node]] = {}
    for node in graph.sorted_nodes():
        on_device = has_device(placement.where[node])
        producers = [v.node for v in node.reads() if v.node is not None and v.node in returns]
        counts = (
            returns[p] + (not on_device and has_device(placement.where[p])) for p in producers
        )
        returns[node] = max(counts, default=0)
        if not on_device:
            groups.setdefault(returns[node], []).append(node)
    return list(groups.values())


def _extract(graph: Graph, nodes: list[Node]) -> HostSubgraph:
    """Move nodes with their bodies to a graph of their own."""
    subgraph = Graph(graph.name)
    subgraph.scope = graph.scope
    subgraph.whole = graph
    subgraph.adopt(nodes)
    inside = set(subgraph.all_nodes())
    exported: list[tuple[Value, Value]] = []  # (value, its placeholder in the parent)
    for value in (v for n in nodes for v in n.outputs):
        outside = [(n, slot) for n, slot in value.uses if n not in inside]
        if outside or _is_output(graph, value):
            exported.append((value, Value("", value.fact)))
            _replace_uses(graph, *exported[-1], outside)
    captures = subgraph.captures()
    subgraph.set_inputs(Value(v.name, v.fact) for v in captures)
    # Constants are copied: passes rewrite all readers of a value, and others may be in the parent.
    replacements = [*zip(captures, subgraph.inputs, strict=True)]
    replacements += ((v, Value(v.name, v.fact)) for v in _constants(subgraph))
    for value, new in replacements:
        _replace_uses(subgraph, value, new, [use for use in value.uses if use[0] in inside])
    subgraph.set_outputs(v for v, _ in exported)
    return HostSubgraph(graph, subgraph, tuple(captures), tuple(p for _, p in exported))


def _constants(subgraph: Graph) -> dict[Value, None]:
    """Return the constants that a subgraph reads or returns."""
    read = (v for n in subgraph.all_nodes() for v in n.inputs if v is not None)
    returned = (v for g in subgraph.family() for v in g.outputs)
    return dict.fromkeys(v for v in (*read, *returned) if v.const is not None)


def _is_output(graph: Graph, value: Value) -> bool:
    return value.n_exits > 0 and any(value in g.outputs for g in graph.family())


def _replace_uses(graph: Graph, old: Value, new: Value, uses: list[tuple[Node, int]]) -> None:
    """Replace a value in these uses, and in the outputs of a graph and its bodies."""
    for reader, slot in uses:
        reader.graph.set_input(reader, slot, new)
    for each in graph.family() if old.n_exits else ():
        if old in each.outputs:
            each.set_outputs([new if v is old else v for v in each.outputs])

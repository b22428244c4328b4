"""Lowering: what only our own ops can say."""

from __future__ import annotations

from sardonyx.graph.dim import lone_name, symbols
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.builder import Builder


def lower_sizes(graph: Graph) -> None:
    """Integer tensors that follow from the inputs' shapes are computed when these are bound.

    Whole chains of Shape, Gather, Concat and arithmetic end in one node that reads nothing.
    """
    sizes = _Sizes(graph)
    for node in list(graph.nodes):
        if len(node.outputs) != 1 or node.op.domain == INTERNAL or node.op.has_bodies:
            continue
        if node.op.name == "Reshape" and not node.op.domain:
            _whole_target(sizes, node)
        value = node.outputs[0]
        fact = value.fact
        if isinstance(fact, Fact) and fact.const is None and sizes.follow(fact):
            made = sizes.value(fact)
            if not made.name:
                made.name, value.name = value.name, ""
            graph.replace(value, made)


class _Sizes:
    """The Sizes nodes of one graph, one for each tensor of sizes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[Fact, Value] = {}
        # A part's inputs may be made by nodes that Sizes, which read nothing, would not wait for.
        facts = (v.fact for v in (graph.whole or graph).inputs)
        self.bound = {lone_name(d) for f in facts if isinstance(f, Fact) for d in f.shape or ()}

    def follow(self, fact: Fact) -> bool:
        """Whether the elements are known to follow from the shapes of the graph's inputs."""
        if fact.sym is None or fact.static is None:
            return False
        return all(symbols(s) <= self.bound for s in fact.sym)

    def value(self, fact: Fact) -> Value:
        """A value with these elements."""
        key = Fact(fact.dtype, fact.shape, None, fact.sym)
        if key not in self._made:
            builder = Builder(self._graph, self._graph.scope)
            self._made[key] = builder.Sizes(domain=INTERNAL, fact=key)
        return self._made[key]


def _whole_target(sizes: _Sizes, node: Node) -> None:
    """Gives a Reshape whose target has a -1 beside open sizes the shape that inference found.

    A size that is 0 in a run would leave the -1 undetermined, and inference knew what it is.
    """
    given, fact = node.inputs[1], node.outputs[0].fact
    if given is None or not isinstance(given.fact, Fact) or not isinstance(fact, Fact):
        return
    target = given.fact
    if target.sym is None or -1 not in target.sym or target.ints is not None:
        return
    whole = Fact(target.dtype, target.shape, None, fact.shape)
    if sizes.follow(whole):
        node.graph.set_input(node, 1, sizes.value(whole))
        node.attrs = {**node.attrs, "allowzero": 1}

"""Shape arithmetic: integer tensors computed from shapes become Sizes nodes.

Inference knows such tensors as expressions over the dims of the graph inputs. A Sizes node
evaluates the expressions when the dims are bound, so chains of Shape, Gather, Concat and arithmetic
need not run.
"""

from __future__ import annotations

from sardonyx.graph.dim import lone_name, symbols
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.builder import Builder


def lower_sizes(graph: Graph) -> None:
    """Replace integer tensors that depend on input shapes only by Sizes nodes."""
    sizes = _Sizes(graph)
    for node in list(graph.nodes):
        if len(node.outputs) != 1 or node.op.domain == INTERNAL or node.op.has_bodies:
            continue
        if node.op.name == "Reshape" and not node.op.domain:
            _complete_target(sizes, node)
        value = node.outputs[0]
        fact = value.fact
        if isinstance(fact, Fact) and fact.const is None and sizes.depends_on_inputs_only(fact):
            new = sizes.value(fact)
            # Several tensors may share one Sizes node, which keeps the name of the first.
            if not new.name:
                new.name, value.name = value.name, ""
            graph.replace(value, new)


class _Sizes:
    """The Sizes nodes of one graph, one per distinct tensor."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._values: dict[Fact, Value] = {}
        # Dims of the whole model's inputs: those of a partition may be computed by nodes that
        # Sizes, which has no inputs, would not wait for.
        facts = (v.fact for v in (graph.whole or graph).inputs)
        self.bound = {lone_name(d) for f in facts if isinstance(f, Fact) for d in f.shape or ()}

    def depends_on_inputs_only(self, fact: Fact) -> bool:
        """Whether all elements are expressions over the dims of the graph inputs."""
        if fact.sym is None or fact.static is None:
            return False
        return all(symbols(s) <= self.bound for s in fact.sym)

    def value(self, fact: Fact) -> Value:
        """The output of a Sizes node with the elements of a fact."""
        key = Fact(fact.dtype, fact.shape, None, fact.sym)
        if key not in self._values:
            builder = Builder(self._graph, self._graph.scope)
            self._values[key] = builder.Sizes(domain=INTERNAL, fact=key)
        return self._values[key]


def _complete_target(sizes: _Sizes, node: Node) -> None:
    """Replace the -1 in a Reshape target with symbolic dims by the inferred size.

    If another dim is 0 in a run, the -1 is not determined, but inference knows the size.
    """
    operand, fact = node.inputs[1], node.outputs[0].fact
    if operand is None or not isinstance(operand.fact, Fact) or not isinstance(fact, Fact):
        return
    # allowzero below: a 0 in the complete shape is a size, not a copied dim.
    target = operand.fact
    if target.sym is None or -1 not in target.sym or target.ints is not None:
        return
    complete = Fact(target.dtype, target.shape, None, fact.shape)
    if sizes.depends_on_inputs_only(complete):
        node.graph.set_input(node, 1, sizes.value(complete))
        node.attrs = {**node.attrs, "allowzero": 1}

"""Gradients of ops with bodies: the backward pass recomputes a body before its gradients.

Only the inputs of an iteration are kept in memory, not its intermediate values (checkpointing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sardonyx.autodiff.backward import Backward, Gradients, accumulate, backpropagate
from sardonyx.autodiff.dependence import captured
from sardonyx.autodiff.recompute import clone_nodes
from sardonyx.errors import NotImplemented
from sardonyx.graph.fact import AnyFact, Fact, SequenceFact
from sardonyx.graph.graph import Graph, Node, Value, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import ONNX, PREVIEW
from sardonyx.ops.builder import Builder
from sardonyx.ops.gradient_rules import element_type
from sardonyx.passes.replace import prune

Contributions = Iterator[tuple[Value, Value]]  # values that a node reads, with their gradients


class BodyGradient:
    """A body of the backward graph: a copy of a forward body, then its gradients."""

    def __init__(self, outer: Backward, body: Graph) -> None:
        self.body = body
        self.graph = Graph(f"{body.name}_grad" if body.name else "")
        self.graph.scope = Scope(outer.graph.scope)
        self.b = Backward(self.graph)
        self._copies: dict[Value, Value] = {}  # of forward values

    def input(self, fact: AnyFact | None) -> Value:
        """Add an input to the backward body."""
        value = Value("", fact.without_contents() if isinstance(fact, Fact) else fact)
        self.graph.add_input(value)
        return value

    def recompute(self, given: Mapping[Value, Value]) -> None:
        """Copy the forward nodes; `given` are values that are read instead of recomputed."""
        self._copies.update(given)
        nodes = [n for n in self.body.sorted_nodes() if not all(v in given for v in n.outputs)]
        for node in clone_nodes(self.graph, nodes, self._copies):
            node.is_backward = True

    def of(self, value: Value) -> Value:
        """Return the copy of a forward value."""
        return self._copies.get(value, value)

    def backpropagate(
        self,
        seeds: Sequence[tuple[Value, Value]],
        targets: Sequence[Value],
        ends: Sequence[Value] = (),
    ) -> Gradients:
        """Return the gradients of `targets`, from those of forward outputs; they stop at `ends`."""
        b, found = self.b, dict[Value, Value]()
        for output, grad in seeds:
            own = self.of(output)
            own_grad = b.like(grad, own)
            found[own] = accumulate(b, own, found.get(own), own_grad)
        last = {self.of(v) for v in ends}
        nodes = [n for n in self.graph.sorted_nodes() if last.isdisjoint(n.outputs)]
        found = backpropagate(b, nodes, found, [self.of(v) for v in targets])
        return {v: b.like(found[own], own) for v in targets if (own := self.of(v)) in found}

    def originals(self) -> dict[Value, Value]:
        """Return the forward values by their copies."""
        return {copy: value for value, copy in self._copies.items()}

    def finish(self, outputs: Sequence[Value]) -> None:
        """Set the outputs, and remove dead nodes."""
        self.graph.set_outputs(outputs)
        prune(self.graph)
        self.graph.sort()


def random_nodes(body: Graph) -> list[Node]:
    """Return the random nodes of a body, which must not be recomputed; nested ones are an error."""
    for node in body.nodes:
        for _, nested in node.subgraphs:
            inner = next((n for n in nested.all_nodes() if not n.op.is_pure), None)
            if inner is not None:
                raise NotImplemented(
                    f"{node.op} in a body has no gradient: recomputing its {inner} would draw "
                    "different random numbers",
                    hint="draw random numbers outside of it",
                )
    return [n for n in body.nodes if not n.op.is_pure]


def _if(b: Backward, node: Node, grads: Sequence[Value | None]) -> Contributions:
    """Add an If that computes the gradients of the branch that ran."""
    wanted = [v for v in dict.fromkeys(captured(node)) if b.wants(v)]
    parts: list[tuple[BodyGradient, Gradients]] = []
    for name, branch in node.subgraphs:
        part = BodyGradient(b, branch)
        given = {v: _kept(b, node, name, v) for n in random_nodes(branch) for v in n.outputs}
        part.recompute({v: _in_static_shape(part.b, new, v) for v, new in given.items()})
        pairs = zip(branch.outputs, grads, strict=False)
        found = part.backpropagate([(v, g) for v, g in pairs if g is not None], wanted)
        parts.append((part, found))
    wanted = [v for v in wanted if any(v in found for _, found in parts)]
    if not wanted:
        return
    for part, found in parts:
        part.finish([found[v] if v in found else part.b.zeros(v) for v in wanted])
    names = [name for name, _ in node.subgraphs]
    branches: dict[str, Any] = {n: part.graph for n, (part, _) in zip(names, parts, strict=True)}
    made = Builder.node(b, "If", input_of(node, 0), outputs=len(wanted), **branches)
    for value, grad in zip(wanted, made.outputs, strict=True):
        yield value, b.like(grad, value)


def _kept(b: Backward, node: Node, name: str, value: Value) -> Value:
    """Add a value of one branch as an output of the If; the other returns an empty tensor."""
    fact = value.tensor
    for key, branch in node.subgraphs:
        inner = Builder(branch, branch.scope)
        if key == name:
            out = inner.Identity(value)
        else:
            shape = inner.ints(*(0 for _ in fact.dims))
            out = inner.Expand(inner.const(0, fact.dtype), shape)
        branch.set_outputs([*branch.outputs, out], [*branch.declared, None])
    dims = tuple(b.graph.scope.new_dim("kept") for _ in fact.dims)
    kept = Value("", Fact(fact.dtype, dims))
    node.graph.add_outputs(node, [kept])
    return kept


def _in_static_shape(b: Backward, value: Value, like: Value) -> Value:
    """Return a value reshaped to the sizes that another is known to have."""
    static = like.tensor.static
    return value if static is None else b.Reshape(value, b.ints(*static), allowzero=1)


def _sequence_map(b: Backward, node: Node, grads: Sequence[Value | None]) -> Contributions:
    """Add a SequenceMap of gradients; those of captured values are summed over elements."""
    body: Graph = node.attrs["body"]
    part = BodyGradient(b, body)
    if random_nodes(body):
        raise NotImplemented("SequenceMap with random numbers in its body has no gradient")
    given = {v: part.input(v.fact) for v in body.inputs}
    part.recompute(given)
    fed = [v for v in node.inputs if v is not None]
    seeds: list[tuple[Value, Value]] = []
    for output, grad in zip(body.outputs, grads, strict=False):
        if grad is not None:
            element = part.input(Fact(element_type(output.fact), None))
            seeds.append((output, part.b.full(element, part.of(output))))
            fed.append(grad)
    inputs = dict(zip(body.inputs, fed, strict=False))
    wanted = [v for v in (*body.inputs, *dict.fromkeys(captured(node))) if b.wants(v)]
    for value in wanted:
        if isinstance(value.fact, SequenceFact):
            raise NotImplemented(
                f"SequenceMap has no gradient with respect to the sequence {value} in its body"
            )
    found = part.backpropagate(seeds, wanted)
    if not found:
        return
    part.finish(list(found.values()))
    made = Builder.node(b, "SequenceMap", *fed, outputs=len(found), body=part.graph)
    for value, grad in zip(found, made.outputs, strict=True):
        outer = inputs.get(value, value)
        is_element = isinstance(outer.fact, SequenceFact)
        yield outer, grad if is_element else _sum(b, grad, outer)


def _sum(b: Backward, sequence: Value, value: Value) -> Value:
    """Return the sum of a sequence's elements, all of one shape; zeros if it is empty."""
    some = b.SequenceInsert(sequence, b.zeros(value))
    stacked = b.ConcatFromSequence(some, axis=0, new_axis=1)
    return b.like(b.ReduceSum(stacked, b.ints(0), keepdims=0), value)


def _flex_attention(b: Backward, node: Node, grads: Sequence[Value | None]) -> Contributions:
    """Decompose FlexAttention, inline its modifiers, and differentiate that."""
    from sardonyx.ops.attention.gradient import flex_attention  # few models have any

    n_before = len(b.new_nodes)

    def inline(body: Graph, x: Value) -> Value:
        if any(not n.op.is_pure for n in body.all_nodes()):
            raise NotImplemented("FlexAttention with random numbers has no gradient")
        copies = {body.inputs[0]: x}
        b.new_nodes += clone_nodes(b.graph, body.sorted_nodes(), copies)
        return copies.get(body.outputs[0], body.outputs[0])

    (grad,) = grads
    assert grad is not None
    out = flex_attention(b, node, inline)
    read = dict.fromkeys((*node.inputs, *captured(node)))
    targets = [v for v in read if v is not None and b.wants(v)]
    found = backpropagate(b, b.new_nodes[n_before:], {out: grad}, targets)
    yield from ((v, found[v]) for v in targets if v in found)


def _loop(b: Backward, node: Node, grads: Sequence[Value | None]) -> Contributions:
    from sardonyx.autodiff import loops  # they use this module

    return loops.gradients(b, node, grads)


_RULES: Final[
    Mapping[tuple[str, str], Callable[[Any, Node, Sequence[Value | None]], Contributions]]
] = {
    (ONNX, "If"): _if,
    (ONNX, "Loop"): _loop,
    (ONNX, "Scan"): _loop,
    (ONNX, "SequenceMap"): _sequence_map,
    (PREVIEW, "FlexAttention"): _flex_attention,
}


def has_rule(node: Node) -> bool:
    """Whether the gradient of a node with bodies is known."""
    return node.op.key in _RULES


def gradients(b: Backward, node: Node, grads: Sequence[Value | None]) -> Contributions:
    """Yield the values that a node or its bodies read, each with its gradient contribution."""
    return _RULES[node.op.key](b, node, grads)

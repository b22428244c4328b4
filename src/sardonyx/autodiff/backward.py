"""Reverse-mode automatic differentiation: builds the backward graph, node by node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sardonyx.autodiff.dependence import differentiable_reads, is_lost, mark_dependents
from sardonyx.autodiff.stops import NO_GRADIENT, rule_for, stops_at_output
from sardonyx.errors import NotImplemented, SardonyxError
from sardonyx.graph.fact import Fact, SequenceFact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import infer
from sardonyx.graph.op import Decomposition
from sardonyx.ops import family_of, module_of
from sardonyx.ops.builder import Builder, Operand
from sardonyx.ops.gradient_rules import GradientBuilder, element_type, outputs_of
from sardonyx.passes.constant_folding import FoldingBuilder
from sardonyx.passes.driver import Rewriter
from sardonyx.passes.options import PassOptions
from sardonyx.passes.pipeline import SEQUENCES
from sardonyx.passes.replace import attribute_to
from sardonyx.passes.rule import by_root

Gradients = dict[Value, Value]  # the gradient of each value
# Folding and common subexpression elimination would remove targets of the differentiation.
DISABLED: Final = frozenset(("CommonSubexpressionElimination", "ConstantFolding"))


def prepare(graph: Graph) -> None:
    """Infer a graph and remove sequences, optionals and Ifs that are known statically.

    Gradients of tensors are cheaper than those of sequences: elements of known sequences, the
    contents of optionals and the branch of an If with a known condition are read directly.
    """
    infer(graph, assumes=False)
    ops = {node.op.name for node in graph.all_nodes()}
    if not ops.isdisjoint((*SEQUENCES, "If")):
        from sardonyx.passes import sequences  # few models have any

        rules = by_root(sequences.RULES)
        Rewriter(graph, rules, fold_limit=0, disabled=DISABLED, is_clean=True).run()
        sequences.stack_sequences(graph)


class Backward(FoldingBuilder, GradientBuilder):
    """The builder of the backward graph: folds constants, unless they have gradients."""

    __slots__ = ("active", "opaque")

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, PassOptions().fold_limit_bytes)
        self.active: set[Value] = set()  # see dependence.Activity
        self.opaque: set[Value] = set()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Value]: ...

    def node(self, name: str, *inputs: Operand, **options: Any) -> Node:
        """Add a node, or fold it to a constant unless it reads an active value."""
        make = Builder.node if self.active.intersection(inputs) else FoldingBuilder.node
        return make(self, name, *inputs, **options)


def accumulate(b: Builder, value: Value, total: Value | None, grad: Value) -> Value:
    """Return the sum of two gradients of a value; those of a sequence are added elementwise."""
    if total is None:
        return grad
    if not isinstance(total.fact, SequenceFact):
        return b.Add(total, grad)
    body = Graph("add")
    for _ in range(2):
        body.add_input(Value("", Fact(element_type(value.fact), None)))
    body.set_outputs([Builder(body, body.scope).Add(*body.inputs)])
    return Builder.node(b, "SequenceMap", total, grad, body=body).outputs[0]


def replace_by(
    graph: Graph,
    node: Node,
    decomposition: Decomposition,
    targets: Collection[Value],
    needed: Collection[Value] = (),
) -> list[tuple[Value, Value]]:
    """Replace a node by its decomposition; return its outputs, each with the new value.

    A node whose decomposition does not apply, or lacks an output that is used or `needed`, stays,
    and the list is empty: that is an error only if a gradient must flow through the node.
    """
    b = Backward(graph)
    b.active.update(targets)
    try:
        outputs = outputs_of(decomposition, b, node)
    except NotImplemented:
        return []
    found = list(zip(node.outputs, outputs, strict=False))
    if any(new is None and (old.is_used or old in needed) for old, new in found):
        return []
    pairs = [(old, new) for old, new in found if new is not None]
    for old, new in pairs:
        new.name, old.name = old.name, ""
        graph.replace(old, new)
    attribute_to(b.new_nodes, node)
    graph.remove(node)
    return pairs


def backpropagate(
    b: Backward, nodes: Sequence[Node], seeds: Mapping[Value, Value], targets: Collection[Value]
) -> Gradients:
    """Return the gradients of every value between the targets and the seeds.

    `nodes` are in topological order; `seeds` are the gradients of their outputs (cotangents). A
    path from a target that ends at a node without a gradient rule is an error, unless the
    derivative is zero there by definition (stops.py).
    """
    mark_dependents(b, nodes, targets)
    gradients: Gradients = dict(seeds)
    missed: set[Value] = set()  # values without gradients that the loss depends on
    for node in reversed(nodes):
        grads = [
            None if stops_at_output(node, i) else gradients.get(value)
            for i, value in enumerate(node.outputs)
        ]
        is_reached = any(g is not None for g in grads)
        # The loss does not depend on this node.
        if not is_reached and missed.isdisjoint(node.outputs):
            continue
        reads = _reads_with_gradient(b, node, missed)
        if not is_reached or not reads:
            continue
        n_before = len(b.new_nodes)
        # Chain rule: contributions of all readers of a value are summed.
        for value, grad in _contributions(b, node, grads, reads):
            gradients[value] = accumulate(b, value, gradients.get(value), grad)
        for added in b.new_nodes[n_before:]:
            added.is_backward = True
            added.name = added.name or (f"{node.name}_grad" if node.name else "")
    return gradients


def _reads_with_gradient(b: Backward, node: Node, missed: set[Value]) -> list[tuple[int, Value]]:
    """Return the inputs of a node that get a gradient, and add those that are lost to `missed`."""
    reads = differentiable_reads(b, node)
    # A target reaches the loss only through a value without gradients, such as integers.
    lost = next((v for v in node.outputs if v in missed), None)
    if lost is not None and any(b.wants(v) for _, v in reads):
        raise _no_gradient(node, lost)
    missed.update(value for _, value in reads if is_lost(b, node, value))
    return [(slot, value) for slot, value in reads if not is_lost(b, node, value)]


def _contributions(
    b: Backward, node: Node, grads: list[Value | None], reads: Sequence[tuple[int, Value]]
) -> Iterator[tuple[Value, Value]]:
    """Yield the active values that a node reads, each with its gradient contribution."""
    if node.op.has_bodies:
        from sardonyx.autodiff import bodies  # few models have any, and they use this module

        if bodies.has_rule(node):
            try:
                yield from bodies.gradients(b, node, grads)
            except SardonyxError as error:
                raise error.add_context(node=node, stage="gradient") from None
            return
    rule = rule_for(node.op)
    if rule is None:
        lost = next(v for v, g in zip(node.outputs, grads, strict=True) if g is not None)
        raise _no_gradient(node, lost)
    try:
        if isinstance(rule, Decomposition):
            built = _decomposed(b, rule, node, grads)
        else:
            built = rule(b, node, *grads)
    except SardonyxError as error:
        raise error.add_context(node=node, stage="gradient") from None
    by_input = built if isinstance(built, (tuple, list)) else (built,)
    for slot, value in reads:
        grad = by_input[slot] if slot < len(by_input) else None
        if not b.wants(value):
            continue
        if grad is not None:
            yield value, grad
        elif not isinstance(rule, Decomposition):  # whose nodes report it themselves
            name = node.op.input_slot(slot).name
            raise NotImplemented(
                f"{node.op} has no gradient with respect to its input {name}, here {value}",
                node=node,
                stage="gradient",
                hint="make it a constant, or leave out of `by` what it depends on",
            )


# Workarounds by family or module of the op, other than asking for other gradients.
_HINTS: Final = {
    "elementwise.cast": "cast to a float type of 16 bits or more",
    "quantize": "use pairs of QuantizeLinear and DequantizeLinear around ops of floats",
}


def _no_gradient(node: Node, value: Value) -> NotImplemented:
    """Return the error for a path from a target to the loss that ends at a node."""
    if rule_for(node.op) is None:
        what = f"{node.op} has no gradient, and the loss depends on its output {value}"
        if (why := NO_GRADIENT.get(str(node.op))) is not None:
            what += f": {why}"
    else:
        what = f"the loss depends on {value}: gradients flow only through f16, bf16, f32 and f64"
        if family_of(*node.op.key) == "quantize":
            what += ", and through quantized values that DequantizeLinear reads"
    keys = (module_of(*node.op.key), family_of(*node.op.key))
    hint = next((_HINTS[k] for k in keys if k in _HINTS), "express it with other ops")
    return NotImplemented(
        what,
        node=node,
        stage="gradient",
        hint=f"{hint}; or ask only for gradients that do not pass through it",
    )


def _decomposed(
    b: Backward, decomposition: Decomposition, node: Node, grads: Sequence[Value | None]
) -> list[Value | None]:
    """Return the gradients of a node's inputs by differentiating its decomposition."""
    n_before = len(b.new_nodes)
    outputs = outputs_of(decomposition, b, node)
    nodes = list(b.new_nodes[n_before:])
    seeds: Gradients = {}
    for out, grad in zip(outputs, grads, strict=False):
        if grad is None:
            continue
        if out is None:
            raise NotImplemented(f"the loss depends on an output of {node.op} that has no gradient")
        seeds[out] = b.Add(seeds[out], grad) if out in seeds else grad
    # The inputs of the node are the targets inside its decomposition.
    targets = [v for v in node.inputs if v is not None and b.wants(v)]
    found = backpropagate(b, nodes, seeds, targets)
    # A value that several slots read has its whole gradient in the first of them.
    firsts = {v: i for i, v in reversed(list(enumerate(node.inputs)))}
    return [
        None if v is None or firsts[v] != i else found.get(v) for i, v in enumerate(node.inputs)
    ]

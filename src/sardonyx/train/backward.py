"""Reverse-mode differentiation: gradient rules in reverse order, summed where paths meet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sardonyx.errors import NotImplemented, SardonyxError
from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import Decomposition
from sardonyx.ops import family_of, module_of
from sardonyx.ops.builder import Builder, Operand
from sardonyx.ops.gradients import GradientBuilder, outputs_of, rule_of
from sardonyx.passes.constant_folding import FoldingBuilder
from sardonyx.passes.options import PassOptions
from sardonyx.train.stops import stops_at_input, stops_at_output

Gradients = dict[Value, Value]  # of a value, by the value


class Backward(FoldingBuilder, GradientBuilder):
    """What rules build with: any op by its name, and what many of them need."""

    __slots__ = ("active", "opaque")

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, PassOptions().fold_limit_bytes)
        self.active: set[Value] = set()  # values that a wanted gradient passes through
        self.opaque: set[Value] = set()  # those that depend on them, but are no tensors of floats

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Value]: ...

    def node(self, name: str, *inputs: Operand, **options: Any) -> Node:
        """A node, or a constant where it is made of constants that have no gradients."""
        make = Builder.node if self.active.intersection(inputs) else FoldingBuilder.node
        return make(self, name, *inputs, **options)


def takes_gradients(value: Value | None) -> bool:
    """Whether a value is a tensor of floats: others have no gradients of their own."""
    return value is not None and isinstance(value.fact, Fact) and value.fact.dtype in FLOATS


def flow(
    b: Backward, nodes: Sequence[Node], seeds: Mapping[Value, Value], wanted: Collection[Value]
) -> Gradients:
    """Gradients of every value between the wanted ones and the seeds, backwards through `nodes`.

    A path from a wanted value that ends at a node without a rule is an error, unless by definition
    nothing flows there (stops.py).
    """
    _follow(b, nodes, wanted)
    sums: Gradients = dict(seeds)
    missed: set[Value] = set()  # opaque values that the loss depends on
    for node in reversed(nodes):
        grads = [sums.get(value) for value in node.outputs]
        is_reached = any(g is not None for g in grads)
        if not is_reached and missed.isdisjoint(node.outputs):
            continue
        reads = _differentiated(b, node)
        if not reads:
            continue
        lost = next((v for v in node.outputs if v in missed), None)
        if lost is not None and any(b.wants(v) for _, v in reads):
            raise _cut(node, lost)
        missed.update(value for _, value in reads if value in b.opaque)
        if not is_reached:
            continue
        n_before = len(b.made)
        for value, grad in _found(b, node, grads, reads):
            sums[value] = b.Add(sums[value], grad) if value in sums else grad
        for made in b.made[n_before:]:
            made.is_backward = True
            made.name = made.name or (f"{node.name}_grad" if node.name else "")
    return sums


def _follow(b: Backward, nodes: Sequence[Node], wanted: Collection[Value]) -> None:
    """Marks what depends on a wanted value: tensors of floats as active, all else as opaque."""
    b.active.update(wanted)
    for node in nodes:
        if not _differentiated(b, node):
            continue
        for index, value in enumerate(node.outputs):
            if not stops_at_output(node, index):
                (b.active if takes_gradients(value) else b.opaque).add(value)


def _differentiated(b: Backward, node: Node) -> list[tuple[int, Value]]:
    """The values by which a node's outputs have derivatives, with their slots; -1 in a body."""
    given = ((i, v) for i, v in enumerate(node.inputs) if not stops_at_input(node, i))
    return [
        (slot, value)
        for slot, value in (*given, *((-1, v) for v in _captured(node)))
        if value is not None and (value in b.active or value in b.opaque)
    ]


def _captured(node: Node) -> Iterator[Value | None]:
    """What is read in a node's bodies; constants too, which may be weights to train."""
    for _, body in node.subgraphs:
        for graph in body.family():
            yield from graph.outputs
            for inner in graph.nodes:
                yield from inner.inputs


def _found(
    b: Backward, node: Node, grads: list[Value | None], reads: Sequence[tuple[int, Value]]
) -> Iterator[tuple[Value, Value]]:
    """The active values that a node reads, each with what the node adds to its gradient."""
    rule = rule_of(node.op)
    if rule is None:
        raise _cut(node, next(v for v, g in zip(node.outputs, grads, strict=True) if g is not None))
    try:
        if isinstance(rule, Decomposition):
            made = _through(b, rule, node, grads)
        else:
            made = rule(b, node, *grads)
    except SardonyxError as error:
        raise error.at(node=node, stage="gradient") from None
    found = made if isinstance(made, (tuple, list)) else (made,)
    for slot, value in reads:
        grad = found[slot] if slot < len(found) else None
        if not b.wants(value):
            continue
        if grad is not None:
            yield value, grad
        elif not isinstance(rule, Decomposition):  # which differentiated its own nodes
            name = node.op.input_slot(slot).name
            raise NotImplemented(
                f"{node.op} has no gradient by its input {name}, here {value}",
                node=node,
                stage="gradient",
                hint="make it a constant, or leave out of `by` what it depends on",
            )


# What to do about ops of a family, beside asking for other gradients.
_HINTS: Final = {
    "elementwise.cast": "cast to a float type of 16 bits or more",
    "control": "unroll it, or make its condition a constant, so that one branch is left",
    "quantize": "differentiate the model as it was before it was quantized",
    "sequence": "join and split tensors, or use positions and numbers of elements that are known",
}


def _cut(node: Node, value: Value) -> NotImplemented:
    """The error for a path from a wanted value to the loss that ends at a node."""
    if rule_of(node.op) is None:
        what = f"{node.op} has no gradient, and the loss depends on {value}, which it makes"
    else:
        what = f"the loss depends on {value}, and gradients pass through f16, bf16, f32 and f64"
    keys = (module_of(*node.op.key), family_of(*node.op.key))
    hint = next((_HINTS[k] for k in keys if k in _HINTS), "build it of other ops")
    return NotImplemented(
        what,
        node=node,
        stage="gradient",
        hint=f"{hint}; or ask only for gradients that do not pass through it",
    )


def _through(
    b: Backward, decomposition: Decomposition, node: Node, grads: Sequence[Value | None]
) -> list[Value | None]:
    """Gradients of a node's inputs, backwards through its decomposition, which is built again."""
    n_before = len(b.made)
    outputs = outputs_of(decomposition, b, node)
    nodes = list(b.made[n_before:])
    seeds: Gradients = {}
    for out, grad in zip(outputs, grads, strict=False):
        if grad is None:
            continue
        if out is None:
            raise NotImplemented(f"an output of {node.op} has no gradient, and the loss needs it")
        seeds[out] = b.Add(seeds[out], grad) if out in seeds else grad
    wanted = [v for v in node.inputs if v is not None and b.wants(v)]
    found = flow(b, nodes, seeds, wanted)
    # An input that is given twice has all of its gradient at its first place.
    firsts = {v: i for i, v in reversed(list(enumerate(node.inputs)))}
    return [
        None if v is None or firsts[v] != i else found.get(v) for i, v in enumerate(node.inputs)
    ]

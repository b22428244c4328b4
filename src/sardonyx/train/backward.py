"""Builds the backward part of a graph: each op's rule in turn, sums where paths meet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.errors import NotImplemented, SardonyxError
from sardonyx.graph.const import Held
from sardonyx.graph.dim import product, same
from sardonyx.graph.dtype import FLOATS, I64, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.ops import family_of
from sardonyx.ops.builder import Builder, Operand
from sardonyx.passes.fold import FoldingBuilder
from sardonyx.passes.options import PassOptions
from sardonyx.train.rules import rule_of
from sardonyx.train.rules.stops import stops_at_input, stops_at_output

Gradients = dict[Value, Value]  # of a value, by the value
LAST: Final = 2**63 - 1  # as the end of a Slice: all that is left


class Backward(FoldingBuilder):
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

    def wants(self, value: Value | None) -> bool:
        """Whether anybody asks for the gradient of a value."""
        return value in self.active

    def shape(self, x: Value) -> Value:
        """The shape of a value as a tensor: a constant where it is known."""
        static = ranked(x).static
        return self.ints(*static) if static is not None else self.Shape(x)

    def size(self, x: Value, axes: Iterable[int]) -> Value:
        """The number of elements along some axes, as one number of the value's type."""
        fact, along = ranked(x), tuple(axes)
        count = product(fact.dims[a] for a in along)
        if isinstance(count, int):
            return self.const(count, fact.dtype)
        sizes = self.Gather(self.Shape(x), self.ints(*along))
        return self.cast(self.ReduceProd(sizes, keepdims=0), fact.dtype)

    def zeros(self, x: Value) -> Value:
        """Zeros of a value's type and shape."""
        zero = Held(np.zeros(1, ranked(x).dtype.np))
        return self.ConstantOfShape(self.shape(x), value=zero)

    def reshape(self, x: Value, like: Value) -> Value:
        """The elements of one value in the shape of another."""
        if ranked(x).dims == ranked(like).dims:
            return x
        return self.Reshape(x, self.shape(like), allowzero=1)

    def expand(self, x: Value, like: Value) -> Value:
        """One value broadcast to the shape of another."""
        if ranked(x).dims == ranked(like).dims:
            return x
        return self.Expand(x, self.shape(like))

    def cast(self, x: Value, dtype: DType) -> Value:
        """A value in another element type."""
        return x if x.tensor.dtype is dtype else self.Cast(x, to=dtype.onnx)

    def where(self, mask: Value, x: Value) -> Value:
        """A value where the mask holds, else 0."""
        return self.Where(mask, x, self.const(0, x.tensor.dtype))

    def turned(self, x: Value) -> Value:
        """A matrix, or a stack of them, transposed."""
        rank = ranked(x).rank
        return self.Transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))

    def sum_to(self, grad: Value, x: Value) -> Value:
        """A gradient added up over what `x` was broadcast along."""
        wide, own = ranked(grad).dims, ranked(x).dims
        lead = len(wide) - len(own)
        pairs = list(zip(wide[lead:], own, strict=True))
        ones = [lead + i for i, (a, b) in enumerate(pairs) if b == 1 and a != 1]
        if lead and not ones:
            grad = self.ReduceSum(grad, self.ints(*range(lead)), keepdims=0)
        elif lead:
            grad = self.ReduceSum(grad, self.ints(*range(lead), *ones), keepdims=0)
            grad = self.reshape(grad, x)
        elif ones:
            grad = self.ReduceSum(grad, self.ints(*ones), keepdims=1)
        if any(b != 1 and same(a, b) is not True for a, b in pairs):
            return self._sum_to_at_run(grad, x)
        return grad

    def _sum_to_at_run(self, grad: Value, x: Value) -> Value:
        """The same where only a run knows which of the sizes are 1."""
        differ = self.Not(self.Equal(self.shape(grad), self.shape(x)))
        axes = self.Reshape(self.NonZero(differ), self.ints(-1))
        total = self.ReduceSum(grad, axes, keepdims=1, noop_with_empty_axes=1)
        return self.Reshape(total, self.shape(x), allowzero=1)


def ranked(x: Value) -> Fact:
    """The fact of a tensor whose rank is known; rules need it."""
    fact = x.fact
    if not isinstance(fact, Fact) or fact.shape is None:
        raise NotImplemented(
            f"the rank of {x.name or 'a value'} is not known, and its gradient needs it",
            hint="give the model's inputs shapes, with names for the sizes that are open",
        )
    return fact


def takes_gradients(value: Value | None) -> bool:
    """Whether a value is a tensor of floats: others have no gradients of their own."""
    return value is not None and isinstance(value.fact, Fact) and value.fact.dtype in FLOATS


def flow(
    b: Backward, nodes: Sequence[Node], seeds: Mapping[Value, Value], wanted: Collection[Value]
) -> Gradients:
    """Gradients of every value between the wanted ones and the seeds, backwards through `nodes`.

    A path from a wanted value that ends at a node without a rule is an error, unless by definition
    nothing flows there (rules/stops.py).
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
        elif not isinstance(rule, Parts):  # which followed the value through what it is made of
            name = node.op.input_slot(slot).name
            raise NotImplemented(
                f"{node.op} has no gradient by its input {name}, here {value}",
                node=node,
                stage="gradient",
                hint="make it a constant, or leave out of `by` what it depends on",
            )


# What to do about ops of a family, beside asking for other gradients.
_HINTS: Final = {
    "cast": "cast to a float type of 16 bits or more",
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
    hint = _HINTS.get(family_of(*node.op.key) or "", "build it of other ops")
    return NotImplemented(
        what,
        node=node,
        stage="gradient",
        hint=f"{hint}; or ask only for gradients that do not pass through it",
    )


class Parts:
    """The gradient of an op by what it is made of: built once more, and gone through backwards."""

    __slots__ = ("build", "replaces")

    def __init__(self, build: Callable[..., Any], replaces: Callable[[Node], bool]) -> None:
        """`replaces`: whether the forward part is made of the parts too, for want of a kernel."""
        self.build = build
        self.replaces = replaces

    def made(self, b: FoldingBuilder, node: Node) -> list[Value | None]:
        """The outputs of a node, of its parts."""
        found = self.build(b, node)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    def __call__(self, b: Backward, node: Node, *grads: Value | None) -> list[Value | None]:
        n_before = len(b.made)
        outputs = self.made(b, node)
        nodes = list(b.made[n_before:])
        seeds: Gradients = {}
        for out, grad in zip(outputs, grads, strict=False):
            if grad is None:
                continue
            if out is None:
                raise NotImplemented(
                    f"an output of {node.op} has no gradient, and the loss needs it"
                )
            seeds[out] = b.Add(seeds[out], grad) if out in seeds else grad
        wanted = [v for v in node.inputs if v is not None and b.wants(v)]
        found = flow(b, nodes, seeds, wanted)
        # An input that is given twice has all of its gradient at its first place.
        firsts = {v: i for i, v in reversed(list(enumerate(node.inputs)))}
        return [
            None if v is None or firsts[v] != i else found.get(v) for i, v in enumerate(node.inputs)
        ]


def int64s(b: Backward, x: Value) -> Value:
    """Indices or sizes in the type that shapes have."""
    return b.cast(x, I64)

"""Builds the backward part of a graph: each op's rule in turn, sums where paths meet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.errors import NotImplemented, SardonyxError
from sardonyx.graph.build import Builder, Operand
from sardonyx.graph.dim import product, same
from sardonyx.graph.dtype import FLOATS, I64, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.pass_options import PassOptions
from sardonyx.passes.fold import FoldingBuilder
from sardonyx.weights.const import Held

Gradients = dict[Value, Value]  # of a value, by the value
LAST: Final = 2**63 - 1  # as the end of a Slice: all that is left


class Backward(FoldingBuilder):
    """What rules build with: any op by its name, and what many of them need."""

    __slots__ = ("active",)

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, PassOptions().fold_limit_bytes)
        self.active: set[Value] = set()  # values that a wanted gradient passes through

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
    """Whether a value is a tensor of floats: nothing flows through others."""
    return value is not None and isinstance(value.fact, Fact) and value.fact.dtype in FLOATS


def flow(
    b: Backward, nodes: Sequence[Node], seeds: Mapping[Value, Value], wanted: Collection[Value]
) -> Gradients:
    """Gradients of every value between the wanted ones and the seeds, backwards through `nodes`."""
    b.active |= active_values(nodes, wanted)
    sums: Gradients = dict(seeds)
    for node in reversed(nodes):
        grads = [sums.get(value) for value in node.outputs]
        if all(g is None for g in grads) or not any(map(b.wants, node.reads())):
            continue
        n_before = len(b.made)
        for value, grad in zip(node.inputs, _apply(b, node, grads), strict=False):
            if value is not None and grad is not None and b.wants(value):
                sums[value] = b.Add(sums[value], grad) if value in sums else grad
        for made in b.made[n_before:]:
            made.is_backward = True
            made.name = made.name or (f"{node.name}_grad" if node.name else "")
    return sums


def active_values(nodes: Sequence[Node], wanted: Collection[Value]) -> set[Value]:
    """The values of floats that depend on a wanted one."""
    active = set(wanted)
    for node in nodes:
        if any(value in active for value in node.reads()):
            active.update(value for value in node.outputs if takes_gradients(value))
    return active


def _apply(b: Backward, node: Node, grads: list[Value | None]) -> Sequence[Value | None]:
    from sardonyx.train.rules import rule_of  # the rules are built of this

    rule = rule_of(node.op)
    if rule is None:
        raise NotImplemented(
            f"{node.op} has no gradient",
            node=node,
            hint="ask only for gradients that do not pass through it, or build it of other ops",
        )
    try:
        found = rule(b, node, *grads)
    except SardonyxError as error:
        raise error.at(node=node, stage="gradient") from None
    return found if isinstance(found, (tuple, list)) else (found,)


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

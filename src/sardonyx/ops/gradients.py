"""How gradients of ops are declared: rules, decompositions, and the builder they work with.

The rules are in `gradient.py` of each family, imported when a gradient first passes through it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.errors import InternalError, NotImplemented
from sardonyx.graph.const import Held
from sardonyx.graph.dim import product, same
from sardonyx.graph.dtype import I64, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, given
from sardonyx.graph.op import ONNX, Gradient, Op
from sardonyx.ops import family_of, lookup
from sardonyx.ops.builder import Builder

LAST: Final = 2**63 - 1  # as the end of a Slice: all that is left


class GradientBuilder(Builder):
    """What rules build with: any op by its name, and what many of them need."""

    __slots__ = ()
    active: set[Value]  # values that a wanted gradient passes through

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Value]: ...

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

    def transposed(self, x: Value) -> Value:
        """Transpose the last two axes."""
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


Unary = Callable[[GradientBuilder, Value, Value, Value], Value]  # builder, gradient, input, output


class Decomposition:
    """The gradient of an op by the ops that it decomposes into."""

    __slots__ = ("build", "replaces")

    def __init__(self, build: Callable[..., Any], replaces: Callable[[Node], bool]) -> None:
        """`replaces`: whether the forward node is decomposed too, for want of a kernel."""
        self.build = build
        self.replaces = replaces

    def made(self, b: Builder, node: Node) -> list[Value | None]:
        """The outputs of a node, from its decomposition."""
        found = self.build(b, node)
        return list(found) if isinstance(found, (tuple, list)) else [found]


def ranked(x: Value) -> Fact:
    """The fact of a tensor whose rank is known; rules need it."""
    fact = x.fact
    if not isinstance(fact, Fact) or fact.shape is None:
        raise NotImplemented(
            f"the rank of {x.name or 'a value'} is not known, and its gradient needs it",
            hint="give the model's inputs shapes, with names for the sizes that are open",
        )
    return fact


def int64s(b: GradientBuilder, x: Value) -> Value:
    """Indices or sizes in the type that shapes have."""
    return b.cast(x, I64)


def rule_of(op: Op) -> Any:
    """The gradient of an op, or None if it has none."""
    if op.gradient_rule is None and (family := family_of(*op.key)) is not None:
        _load(family)
    return op.gradient_rule


@cache
def _load(family: str) -> None:
    """Import a family's gradients, where it has any."""
    name = f"sardonyx.ops.{family}"
    is_package = hasattr(importlib.import_module(name), "__path__")
    if is_package and importlib.util.find_spec(f"{name}.gradient") is not None:
        importlib.import_module(f"{name}.gradient")


def declared(name: str, domain: str = ONNX) -> Op:
    """The op of a name."""
    op = lookup(domain, name)
    if op is None:
        raise InternalError(f"no op {domain}.{name} to have a gradient")
    return op


def gradient(*names: str, domain: str = ONNX) -> Callable[[Gradient], Gradient]:
    """Decorator: the rule of these ops."""

    def keep(rule: Gradient) -> Gradient:
        for name in names:
            declared(name, domain).gradient(rule)
        return rule

    return keep


def decompose(
    *names: str, domain: str = ONNX, replaces: Callable[[Node], bool] = lambda _: False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the decomposition of these ops, from which their gradients follow."""

    def keep(build: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            declared(name, domain).gradient_rule = Decomposition(build, replaces)
        return build

    return keep


def unary(name: str, rule: Unary, domain: str = ONNX) -> None:
    """The rule of an op of one input, without attributes."""

    def run(b: GradientBuilder, node: Node, dy: Value) -> Value:
        return rule(b, dy, given(node, 0), node.outputs[0])

    declared(name, domain).gradient(run)


def saved(b: GradientBuilder, node: Node, slot: int) -> Value:
    """An output of a forward node that only its gradient needs; from now on the node makes it."""
    node.graph.add_outputs(node, (Value("") for _ in range(slot + 1 - len(node.outputs))))
    if node.outputs[slot].fact is None:
        b.infer(node, None)
    return node.outputs[slot]

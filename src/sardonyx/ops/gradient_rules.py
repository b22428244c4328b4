"""Declaration of gradients: rules, decompositions, and the builder they use.

The rules are in `gradient.py` of each family, and where they are many in `contrib_gradient.py`,
imported when a gradient first passes through the family.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from sardonyx.base.name_index import import_if_present
from sardonyx.errors import InternalError, NotImplemented
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.dim import product, same
from sardonyx.graph.dtype import F32, I64, DType
from sardonyx.graph.fact import AnyFact, Fact, OptionalFact, SequenceFact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import ONNX, Build, Decomposition, Gradient, Op
from sardonyx.ops import family_of, lookup
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import NoMatch, Outputs, as_outputs, never

LAST: Final = 2**63 - 1  # as the end of a Slice: to the end


class GradientBuilder(Builder):
    """The builder of gradient rules: any op by name, and operations that many rules share."""

    __slots__ = ()
    active: set[Value]  # values on a path to a requested gradient

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Value]: ...

    def wants(self, value: Value | None) -> bool:
        """Whether the gradient of a value is needed."""
        return value in self.active

    def shape(self, x: Value) -> Value:
        """Return the shape of a value as a tensor: a constant where it is static."""
        static = x.tensor.static
        return self.ints(*static) if static is not None else self.Shape(x)

    def size(self, x: Value, axes: Iterable[int]) -> Value:
        """Return the number of elements along some axes, as an int64 scalar."""
        along = tuple(axes)
        count = product(ranked(x).dims[a] for a in along)
        if isinstance(count, int):
            return self.const(count, I64)
        return self.ReduceProd(self.Gather(self.Shape(x), self.ints(*along)), keepdims=0)

    def count(self, mask: Value, axes: Value, dtype: DType) -> Value:
        """Return how many elements of a mask are true along some axes, which are kept."""
        return self.ReduceSum(self.cast(mask, wider(dtype)), axes, keepdims=1)

    def divided(self, x: Value, count: Value) -> Value:
        """Return a value divided by a number of elements, in its type.

        Of 16-bit types the quotient is that of float32: float16 ends at 65,504, and bfloat16
        rounds numbers over 256.
        """
        dtype = x.tensor.dtype
        wide = wider(dtype)
        return self.cast(self.Div(self.cast(x, wide), self.cast(count, wide)), dtype)

    def length(self, x: Value, axis: int) -> Value:
        """Return the size of an axis, as an int64 scalar."""
        return self.Squeeze(self.element(self.shape(x), axis), self.ints(0))

    def along(self, vector: Value, axis: int, rank: int) -> Value:
        """Reshape a vector so that it broadcasts along one of `rank` axes."""
        return self.Reshape(vector, self.ints(*(-1 if i == axis else 1 for i in range(rank))))

    def zeros(self, x: Value) -> Value:
        """Return zeros of a value's type and shape, or of its elements' type for a sequence.

        In gradients of sequences and optionals a scalar 0 stands for zeros of any shape, so that
        the shapes of elements are not needed.
        """
        if isinstance(x.fact, SequenceFact):
            length = self.Unsqueeze(self.SequenceLength(x), self.ints(0))
            zero = ArrayConst(np.zeros(1, element_type(x.fact).np))
            scalars = self.ConstantOfShape(length, value=zero)
            return self.SplitToSequence(scalars, axis=0, keepdims=0)
        if isinstance(x.fact, OptionalFact):
            return self.const(0, _element_of_optional(x.fact).dtype)
        zero = ArrayConst(np.zeros(1, x.tensor.dtype.np))
        return self.ConstantOfShape(self.shape(x), value=zero)

    def like(self, grad: Value, x: Value) -> Value:
        """Return a gradient of `x` in the shape of `x`, for one whose shape is less known."""
        return self.reshape(grad, x) if isinstance(x.fact, Fact) else grad

    def full(self, element: Value, x: Value) -> Value:
        """Return an element of a sequence's gradient, which may be a scalar 0, in `x`'s shape."""
        if not isinstance(x.fact, Fact):
            return element
        return self.like(self.Expand(element, self.shape(x)), x)

    def reshape(self, x: Value, like: Value) -> Value:
        """Reshape one value to the shape of another."""
        if x.tensor.shape is not None and x.tensor.shape == like.tensor.shape:
            return x
        return self.Reshape(x, self.shape(like), allowzero=1)

    def expand(self, x: Value, like: Value) -> Value:
        """Broadcast one value to the shape of another."""
        if ranked(x).dims == ranked(like).dims:
            return x
        return self.Expand(x, self.shape(like))

    def where(self, mask: Value, x: Value) -> Value:
        """Return the value where the mask is true, else 0."""
        return self.Where(mask, x, self.const(0, x.tensor.dtype))

    def transposed(self, x: Value) -> Value:
        """Transpose the last two axes."""
        rank = ranked(x).rank
        return self.Transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))

    def sum_to(self, grad: Value, x: Value) -> Value:
        """Sum a gradient over the axes along which `x` was broadcast."""
        if x.tensor.shape is None:  # an element of a sequence
            return self._sum_to_at_run(grad, x)
        # Broadcasting adds leading axes and expands axes of size 1: sum over both kinds.
        wide, own = ranked(grad).dims, ranked(x).dims
        lead = len(wide) - len(own)
        pairs = list(zip(wide[lead:], own, strict=True))
        ones = [lead + i for i, (a, b) in enumerate(pairs) if b == 1 and a != 1]
        if lead:
            grad = self.ReduceSum(grad, self.ints(*range(lead), *ones), keepdims=0)
            grad = self.reshape(grad, x) if ones else grad
        elif ones:
            grad = self.ReduceSum(grad, self.ints(*ones), keepdims=1)
        if any(b != 1 and same(a, b) is not True for a, b in pairs):
            return self._sum_to_at_run(grad, x)
        return grad

    def _sum_to_at_run(self, grad: Value, x: Value) -> Value:
        """The same where the broadcast axes are known only at run time."""
        wide, own = self.shape(grad), self.shape(x)
        if x.tensor.shape is None:
            lead = self.Unsqueeze(self.Sub(self.Size(wide), self.Size(own)), self.ints(0))
            own = self.Concat(self.Expand(self.ints(1), lead), own, axis=0)
        differ = self.Not(self.Equal(wide, own))
        axes = self.Reshape(self.NonZero(differ), self.ints(-1))
        total = self.ReduceSum(grad, axes, keepdims=1, noop_with_empty_axes=1)
        return self.Reshape(total, self.shape(x), allowzero=1)


def wider(dtype: DType) -> DType:
    """Return the type in which counts and statistics of a float type are computed."""
    return dtype if dtype.bits > 16 else F32


def element_type(fact: AnyFact | None) -> DType:
    """Return the type of a tensor, or of the tensors in a sequence or optional."""
    if isinstance(fact, Fact):
        return fact.dtype
    if isinstance(fact, SequenceFact):
        return element_type(fact.elem)
    raise NotImplemented(f"gradients do not pass through {fact or 'values of unknown type'}")


def _element_of_optional(fact: OptionalFact) -> Fact:
    """Return the fact of the tensor in an optional; one with a sequence may be empty or not."""
    if not isinstance(fact.elem, Fact):
        raise NotImplemented(f"gradients do not pass through {fact} where it may be empty")
    return fact.elem


def outputs_of(decomposition: Decomposition, b: Builder, node: Node) -> Outputs:
    """The outputs of a node, from its decomposition."""
    try:
        found = decomposition.build(b, node)
    except NoMatch as reason:
        raise NotImplemented(f"{node.op} cannot be decomposed: {reason}") from None
    return as_outputs(found)


def ranked(x: Value) -> Fact:
    """Return the fact of a tensor; raise if its rank is unknown, which rules need."""
    fact = x.fact
    if not isinstance(fact, Fact) or fact.shape is None:
        raise NotImplemented(
            f"the rank of {x.name or 'a value'} is not known, and its gradient needs it",
            hint="give the model's inputs shapes, with names for dynamic sizes",
        )
    return fact


def rule_of(op: Op) -> Gradient | Decomposition | None:
    """The gradient of an op, or the decomposition to differentiate; None if it has neither."""
    if op.gradient_rule is None and (family := family_of(*op.key)) is not None:
        _load(family)
    return op.gradient_rule or op.decomposition


@cache
def _load(family: str) -> None:
    """Import a family's gradients, where it has any."""
    if hasattr(importlib.import_module(f"sardonyx.ops.{family}"), "__path__"):
        for name in ("gradient", "contrib_gradient"):
            import_if_present(f"sardonyx.ops.{family}.{name}")


def declared(name: str, domain: str = ONNX) -> Op:
    """Return a declared op by name."""
    op = lookup(domain, name)
    if op is None:
        raise InternalError(f"a gradient is declared for {domain}.{name}, which is not an op")
    return op


def gradient(*names: str, domain: str = ONNX) -> Callable[[Gradient], Gradient]:
    """Decorator: declare the gradient rule of these ops."""

    def keep(rule: Gradient) -> Gradient:
        for name in names:
            declared(name, domain).gradient(rule)
        return rule

    return keep


def decompose(
    *names: str, domain: str = ONNX, when: Callable[[Node], bool] = never
) -> Callable[[Build], Build]:
    """Decorator: these ops in terms of others, through which their gradients pass.

    Lowering does not use it: kernels compute the ops, or a decomposition that they declare. With
    `when` it is the op's decomposition, which replaces nodes of the forward graph, in addition to a
    rule.
    """

    def keep(build: Build) -> Build:
        for name in names:
            op = declared(name, domain)
            if when is never:
                op.gradient_rule = Decomposition(build, when)
            else:
                op.decompose(build, when=when)
        return build

    return keep


def saved(b: GradientBuilder, node: Node, slot: int) -> Value:
    """Return an optional output of a forward node for its gradient, adding it to the node."""
    node.graph.add_outputs(node, (Value("") for _ in range(slot + 1 - len(node.outputs))))
    if node.outputs[slot].fact is None:
        b.infer(node, None)
    return node.outputs[slot]

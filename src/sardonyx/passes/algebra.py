"""Algebraic simplification: remove no-op nodes, combine pairs of nodes into one.

All rules here are exact: they change no bit of any result, so they run at every level above 0.
"""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.dim import same
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, optional_input
from sardonyx.ops.builder import Builder
from sardonyx.passes.rule import P, hole, need, present, ranked, rule

_MAX_CONDITION: Final = 1 << 16  # elements of a constant condition that is read to be compared
x, y = hole("x"), hole("y")


def unchanged(old: Value, new: Value) -> None:
    """Abandon a rewrite unless both values have the same type and provably the same shape."""
    ranked(old, new)
    need(old.tensor.dtype is new.tensor.dtype, "types differ")
    need(old.tensor.shape == new.tensor.shape, "shapes are not proven equal")


@rule(P.Identity(x), aliases="EliminateIdentity")
def identity(b: Builder, x: Value) -> Value:
    """Remove Identity."""
    return x


@rule(P.Dropout(x, rest=True).named("node"), aliases="EliminateDropout")
def dropout(b: Builder, x: Value, node: Node) -> Value:
    """Remove Dropout that does not train: it drops nothing then."""
    mode = optional_input(node, 2)
    need(
        mode is None or (mode.const is not None and not mode.const.read().any()), "may be training"
    )
    return x


@rule(x + 0, x - 0, aliases="NoopElimination")
def add_zero(b: Builder, x: Value) -> Value:
    """Remove x + 0 and x - 0 of integers."""
    # Not of floats: -0.0 + 0.0 is 0.0, which 1 / x tells apart.
    need(not isinstance(x.fact, Fact) or x.fact.dtype.is_integer, "-0.0 + 0.0 is 0.0")
    unchanged_by_scalar(x)
    return x


@rule(x * 1, x / 1, P.Pow(x, 1), aliases="NoopElimination")
def times_one(b: Builder, x: Value) -> Value:
    """Remove x * 1, x / 1 and x ** 1."""
    unchanged_by_scalar(x)
    return x


def unchanged_by_scalar(x: Value) -> None:
    """Abandon a rewrite if broadcasting with a one-element constant could raise the rank."""
    # The constant may have shape [1]: then a scalar x becomes a vector.
    need(isinstance(x.fact, Fact) and x.fact.shape, "rank may grow")


@rule(
    *(getattr(P, op)(x, y).named("node") for op in ("Reshape", "Expand", "Tile", "Squeeze")),
    aliases="EliminateNoop",
)
def same_shape(b: Builder, x: Value, y: Value, node: Node) -> Value:
    """Remove Reshape, Expand, Tile and Squeeze that keep the shape."""
    # A shape change that changes no shape keeps all elements in place.
    unchanged(node.outputs[0], x)
    # A dim of size 0 stays 0 with any repeat count, so an equal shape alone proves nothing.
    if node.op.name == "Tile":
        need(
            isinstance(y.fact, Fact) and y.fact.ints is not None and set(y.fact.ints) <= {1},
            "repeats",
        )
    return x


@rule(
    # Concat, Sum, Max and Min of one operand, and Flatten, Squeeze and Cast without effect.
    P.Flatten(x).named("node"),
    P.Squeeze(x).named("node"),
    P.Cast(x).named("node"),
    P.Concat(x).named("node"),
    P.Sum(x).named("node"),
    P.Max(x).named("node"),
    P.Min(x).named("node"),
    aliases="CastElimination alone",
)
def single_operand(b: Builder, x: Value, node: Node) -> Value:
    """Remove ops that return their only input unchanged, if type and shape stay."""
    unchanged(node.outputs[0], x)
    return x


@rule(P.Slice(x, rest=True).named("node"), aliases="EliminateSlice")
def whole_slice(b: Builder, x: Value, node: Node) -> Value:
    """Remove a Slice that keeps every size and has positive steps: it copies everything."""
    unchanged(node.outputs[0], x)
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    if steps is not None:
        need(isinstance(steps.fact, Fact) and steps.fact.ints is not None, "steps are open")
        # A negative step reverses, with the same sizes.
        need(all(s > 0 for s in steps.tensor.ints or ()), "may be reversed")
    return x


@rule(
    P.Reshape(P.Reshape(x, y), hole("z")).named("node"),
    P.Reshape(P.Unsqueeze(x, y), hole("z")).named("node"),
    P.Reshape(P.Squeeze(x, y), hole("z")).named("node"),
    aliases="ReshapeFusion",
)
def reshape_twice(b: Builder, x: Value, y: Value, z: Value, node: Node) -> Value:
    """Combine two shape changes into the last one."""
    sizes = z.tensor.sym
    # A 0 in the target copies a dim of the inner result, which is gone afterwards.
    need(sizes is not None and all(same(s, 0) is False for s in sizes), "a 0 may copy a dim")
    reshaped: Value = b.Reshape(x, z, **node.attrs)
    need(reshaped.tensor.shape == node.outputs[0].tensor.shape, "shapes are not proven equal")
    return reshaped


@rule(
    P.Unsqueeze(P.Squeeze(x, hole("a")), hole("c")).named("node"),
    P.Squeeze(P.Unsqueeze(x, hole("a")), hole("c")).named("node"),
    aliases="squeeze_back",
)
def inverse_squeeze(b: Builder, x: Value, a: Value, c: Value, node: Node) -> Value:
    """Remove a Squeeze and an Unsqueeze that undo each other."""
    unchanged(node.outputs[0], x)
    return x


@rule(P.CastLike(x, y).named("node"))
def cast_like(b: Builder, x: Value, y: Value, node: Node) -> Value:
    """Replace CastLike by a Cast to the known type, so that its second input can be dead."""
    # Inference already knows the type of y; its elements are not needed.
    need(isinstance(y.fact, Fact), "the type is not known")
    return b.Cast(x, to=y.tensor.dtype.onnx, **node.attrs)


@rule(P.Where(hole("c"), x, y).named("node"), aliases="one_sided")
def constant_where(b: Builder, c: Value, x: Value, y: Value, node: Node) -> Value:
    """Replace a Where by one of its sides if the condition is constant and uniform."""
    const = present(c.const, "the condition is not constant")
    need(0 < const.count <= _MAX_CONDITION, "the condition is empty or large")
    condition = const.read()
    need(condition.all() or not condition.any(), "the condition is mixed")
    chosen = x if condition.any() else y
    unchanged(node.outputs[0], chosen)
    return chosen


_rows = P.Softmax(P.Flatten(x).named("flat")).named("softmax")


@rule(P.Reshape(_rows, hole("s")).named("node"))
def softmax_of_rows(b: Builder, x: Value, s: Value, flat: Node, softmax: Node, node: Node) -> Value:
    """Apply the Softmax of opsets below 13 to the last axis, without the matrix of its rows."""
    unchanged(node.outputs[0], x)
    last = x.tensor.rank - 1
    is_last = flat.attrs["axis"] in (-1, last) and softmax.attrs["axis"] in (-1, 1)
    need(is_last and last > 0, "rows have more than one dim")
    return b.Softmax(x, axis=-1)


def permutation_of(node: Node) -> tuple[int, ...]:
    """The permutation of a Transpose; without `perm` it reverses the dims."""
    perm, shape = node.attrs["perm"], node.outputs[0].tensor.shape
    need(perm is not None or shape is not None, "the rank is unknown")
    # ONNX: the default reverses the dims.
    return tuple(perm) if perm is not None else tuple(reversed(range(len(shape or ()))))


@rule(P.Transpose(P.Transpose(x).named("inner")).named("outer"), aliases="TransposeOptimizer")
def transpose_twice(b: Builder, x: Value, inner: Node, outer: Node) -> Value:
    """Combine two Transposes; permutations that undo each other vanish."""
    need(x.tensor.shape is not None, "the rank is unknown, so a permutation may not fit it")
    first, second = permutation_of(inner), permutation_of(outer)
    # Axis i of the result is axis second[i] of the inner result, which is first[second[i]] of x.
    combined = tuple(first[i] for i in second)
    if combined == tuple(range(len(combined))):
        return x
    return b.Transpose(x, perm=combined)


@rule(P.Transpose(x).named("node"), aliases="TransposeOptimizer")
def transpose_nothing(b: Builder, x: Value, node: Node) -> Value:
    """Remove a Transpose with the identity permutation."""
    need(x.tensor.shape is not None, "the rank is unknown, so the permutation may not fit it")
    perm = permutation_of(node)
    need(perm == tuple(range(len(perm))), "it permutes dims")
    return x


# In the order in which they are tried at a node.
RULES: Final[tuple[Any, ...]] = (
    *identity, *dropout, *add_zero, *times_one, *same_shape, *single_operand, *whole_slice,
    *reshape_twice, *inverse_squeeze, *cast_like, *constant_where, *transpose_twice,
    *transpose_nothing, *softmax_of_rows,
)  # fmt: skip

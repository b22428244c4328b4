"""Nodes that change nothing, and pairs of nodes that are one."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.dim import same
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.passes.pattern import P, hole
from sardonyx.passes.rule import need, rule

_LOOKED_AT: Final = 1 << 16  # elements of a constant condition, to see whether all are the same
x, y = hole("x"), hole("y")


def unchanged(old: Value, new: Value) -> None:
    """Says no unless one value may stand for the other: same type, and the same shape, proven."""
    a, b = old.fact, new.fact
    need(isinstance(a, Fact) and isinstance(b, Fact) and a.dtype is b.dtype, "types differ")
    assert isinstance(a, Fact)
    assert isinstance(b, Fact)
    need(a.shape is not None and a.shape == b.shape, "shapes are not proven equal")


@rule(P.Identity(x), ort="EliminateIdentity")
def identity(b: Builder, x: Value) -> Value:
    return x


@rule(P.Dropout(x, rest=True).named("node"), ort="EliminateDropout")
def dropout(b: Builder, x: Value, node: Node) -> Value:
    """Outside training nothing is dropped."""
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    need(
        mode is None or (mode.const is not None and not mode.const.read().any()), "may be training"
    )
    return x


@rule(x + 0, x - 0, ort="NoopElimination")
def add_zero(b: Builder, x: Value) -> Value:
    need(not isinstance(x.fact, Fact) or x.fact.dtype.is_integer, "-0.0 + 0.0 is 0.0")
    unchanged_by_scalar(x)
    return x


@rule(x * 1, x / 1, P.Pow(x, 1), ort="NoopElimination")
def times_one(b: Builder, x: Value) -> Value:
    unchanged_by_scalar(x)
    return x


def unchanged_by_scalar(x: Value) -> None:
    """Says no if a constant of one element could raise the rank by broadcasting."""
    need(
        isinstance(x.fact, Fact) and x.fact.shape is not None and len(x.fact.shape) > 0,
        "rank may grow",
    )


@rule(
    P.Reshape(x, y).named("node"),
    P.Expand(x, y).named("node"),
    P.Tile(x, y).named("node"),
    P.Squeeze(x, y).named("node"),
    ort="EliminateNoop",
)
def same_shape(b: Builder, x: Value, y: Value, node: Node) -> Value:
    """Shape changes that change no shape; Tile keeps contents only where every count is 1."""
    unchanged(node.outputs[0], x)
    if node.op.name == "Tile":
        need(
            isinstance(y.fact, Fact) and y.fact.ints is not None and set(y.fact.ints) <= {1},
            "repeats",
        )
    return x


@rule(
    P.Flatten(x).named("node"),
    P.Squeeze(x).named("node"),
    P.Cast(x).named("node"),
    P.Concat(x).named("node"),
    P.Sum(x).named("node"),
    P.Max(x).named("node"),
    P.Min(x).named("node"),
    ort="CastElimination",
)
def alone(b: Builder, x: Value, node: Node) -> Value:
    """Ops that give back what they get, if type and shape stay."""
    unchanged(node.outputs[0], x)
    return x


@rule(P.Slice(x, rest=True).named("node"), ort="EliminateSlice")
def whole_slice(b: Builder, x: Value, node: Node) -> Value:
    """A slice forwards that leaves every size as it is takes everything."""
    unchanged(node.outputs[0], x)
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    if steps is not None:
        need(isinstance(steps.fact, Fact) and steps.fact.ints is not None, "steps are open")
        need(all(s > 0 for s in steps.tensor.ints or ()), "may be reversed")
    return x


@rule(
    P.Reshape(P.Reshape(x, y), hole("z")).named("node"),
    P.Reshape(P.Unsqueeze(x, y), hole("z")).named("node"),
    P.Reshape(P.Squeeze(x, y), hole("z")).named("node"),
    ort="ReshapeFusion",
)
def reshape_twice(b: Builder, x: Value, y: Value, z: Value, node: Node) -> Value:
    """Only the last of two shapes counts, unless it copies a dim of the first by a 0."""
    sizes = z.tensor.sym
    need(sizes is not None and all(same(s, 0) is False for s in sizes), "a 0 may copy a dim")
    made: Value = b.Reshape(x, z, **node.attrs)
    need(made.tensor.shape == node.outputs[0].tensor.shape, "shapes are not proven equal")
    return made


@rule(
    P.Unsqueeze(P.Squeeze(x, hole("a")), hole("c")).named("node"),
    P.Squeeze(P.Unsqueeze(x, hole("a")), hole("c")).named("node"),
)
def squeeze_back(b: Builder, x: Value, a: Value, c: Value, node: Node) -> Value:
    unchanged(node.outputs[0], x)
    return x


@rule(P.CastLike(x, y).named("node"))
def cast_like(b: Builder, x: Value, y: Value, node: Node) -> Value:
    """A cast to a type that is known; what it is like need not be there any more."""
    need(isinstance(y.fact, Fact), "the type is not known")
    made: Value = b.Cast(x, to=y.tensor.dtype.onnx, **node.attrs)
    return made


@rule(P.Where(hole("c"), x, y).named("node"))
def one_sided(b: Builder, c: Value, x: Value, y: Value, node: Node) -> Value:
    """A choice that is known to be the same everywhere."""
    need(c.const is not None and 0 < c.const.count <= _LOOKED_AT, "the condition is not known")
    assert c.const is not None
    truth = c.const.read()
    need(truth.all() or not truth.any(), "some are of each")
    chosen = x if truth.any() else y
    unchanged(node.outputs[0], chosen)
    return chosen


RULES: Final[tuple[Any, ...]] = (
    *identity, *dropout, *add_zero, *times_one, *same_shape, *alone, *whole_slice, *reshape_twice,
    *squeeze_back, *cast_like, *one_sided,
)  # fmt: skip

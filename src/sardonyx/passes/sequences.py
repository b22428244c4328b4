"""Sequences whose elements are known one by one: what is read from them is those elements."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.build import Builder
from sardonyx.graph.dtype import I64
from sardonyx.graph.fact import Fact, SequenceFact
from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.ops.rules import axis_of
from sardonyx.ops.sequence import part_sizes, place_in
from sardonyx.passes.pattern import P, hole
from sardonyx.passes.rule import NoMatch, need, rule

x, position = hole("x"), hole("position")


@rule(P.SequenceAt(x, position))
def element(b: Builder, x: Value, position: Value) -> Value:
    """An element at a known place is the value that was put there."""
    parts = _parts(b, x)
    where = place_in(len(parts), position.tensor, len(parts) - 1)
    if where is None:
        raise NoMatch("the position is not known")
    return parts[where]


@rule(P.ConcatFromSequence(x).named("node"))
def joined(b: Builder, x: Value, node: Node) -> Value:
    """Known elements are joined by Concat."""
    parts = _parts(b, x)
    need(bool(parts), "there is nothing to join")
    need(all(v.tensor.shape is not None for v in parts), "a rank is not known")
    axis = node.attrs["axis"]
    if node.attrs["new_axis"]:
        axis = axis_of(axis, parts[0].tensor.rank + 1)
        parts = [b.Unsqueeze(v, b.ints(axis)) for v in parts]
    return parts[0] if len(parts) == 1 else b.Concat(*parts, axis=axis)


@rule(P.OptionalGetElement(x))
def content(b: Builder, x: Value) -> Value:
    """What is in an optional is the value that was put there, or a value that never was in one."""
    if isinstance(x.fact, (Fact, SequenceFact)):
        return x
    need(x.op == "Optional" and x.node is not None, "what the optional holds is not known")
    assert x.node is not None
    inner = optional(x.node, 0)
    if inner is None:
        raise NoMatch("the optional is empty")
    return inner


def _parts(b: Builder, sequence: Value) -> list[Value]:
    """The elements of a sequence, as the nodes that made it say."""
    node = sequence.node
    name = sequence.op if node is not None and not node.op.domain else ""
    if node is None or not isinstance(sequence.fact, SequenceFact) or sequence.fact.parts is None:
        raise NoMatch("how many elements there are is not known")
    if name == "SequenceEmpty":
        return []
    if name == "SequenceConstruct":
        return [v for v in node.inputs if v is not None]
    if name == "SplitToSequence":
        return _split(b, node)
    if name not in ("Identity", "SequenceErase", "SequenceInsert"):
        raise NoMatch(f"{name} hides the elements")
    parts = _parts(b, given(node, 0))
    if name == "SequenceErase":
        del parts[_place(node, 1, len(parts), len(parts) - 1)]
    if name == "SequenceInsert":
        parts.insert(_place(node, 2, len(parts), len(parts)), given(node, 1))
    return parts


def _place(node: Node, slot: int, length: int, last: int) -> int:
    """Where an op changes a sequence: at the end, unless an input says otherwise."""
    value = optional(node, slot)
    where = last if value is None else place_in(length, value.tensor, last)
    if where is None:
        raise NoMatch("the position is not known")
    return where


def _split(b: Builder, node: Node) -> list[Value]:
    whole, split = given(node, 0), optional(node, 1)
    axis = axis_of(node.attrs["axis"], whole.tensor.rank)
    sizes = part_sizes(whole.tensor.dims[axis], None if split is None else split.tensor)
    if sizes is None:
        raise NoMatch("how many parts there are is not known")
    numbers = [s for s in sizes if isinstance(s, int)]
    if not sizes:
        return []
    given_sizes = b.ints(*numbers) if len(numbers) == len(sizes) else split
    need(given_sizes is not None and given_sizes.tensor.dtype is I64, "the sizes are not int64")
    parts = b.node("Split", whole, given_sizes, outputs=len(sizes), axis=axis).outputs
    if node.attrs["keepdims"] or split is not None:
        return list(parts)
    return [b.Squeeze(part, b.ints(axis)) for part in parts]


RULES: Final = (*element, *joined, *content)

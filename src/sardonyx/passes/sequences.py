"""Sequences whose elements are known one by one: what is read from them is those elements."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import I64
from sardonyx.graph.fact import Fact, SequenceFact
from sardonyx.graph.graph import Graph, Node, Value, given, optional
from sardonyx.ops.builder import Builder
from sardonyx.ops.control import collect
from sardonyx.ops.inference import axis_of
from sardonyx.ops.sequence import part_sizes, place_in
from sardonyx.passes.loops import drop_carried
from sardonyx.passes.pattern import P, hole
from sardonyx.passes.rule import NoMatch, need, rule

x, position = hole("x"), hole("position")


@rule(P.SequenceAt(x, position))
def element(b: Builder, x: Value, position: Value) -> Value:
    """An element at a known place is the value that was put there, a slice is gathered."""
    is_known = isinstance(x.fact, SequenceFact) and x.fact.parts is not None
    if x.op == "SplitToSequence" and not (is_known and position.tensor.ints):
        return _slice(b, x, position)
    parts = _parts(b, x)
    where = place_in(len(parts), position.tensor, len(parts) - 1)
    if where is None:
        raise NoMatch("the position is not known")
    return parts[where]


def _slice(b: Builder, x: Value, position: Value) -> Value:
    assert x.node is not None
    whole, keeps = given(x.node, 0), x.node.attrs["keepdims"]
    need(optional(x.node, 1) is None and whole.tensor.shape is not None, "parts have many sizes")
    index = b.node("Reshape", position, b.ints(1) if keeps else b.ints()).outputs[0]
    return b.node("Gather", whole, index, axis=x.node.attrs["axis"]).outputs[0]


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


def collect_sequences(graph: Graph) -> None:
    """Sequences that a Loop fills, one element a pass, to be joined after it, are never made."""
    for each in list(graph.family()):
        for node in list(each.nodes):
            if node.op.key == ("", "Loop"):
                _collect(node)


def _collect(node: Node) -> None:
    body: Graph = node.attrs["body"]
    n_carried = len(node.inputs) - 2
    found = {i: v for i in range(n_carried) if (v := _appended(node, body, i)) is not None}
    if not found:
        return
    readers = [(r, found[i]) for i in found for r, _ in node.outputs[i].uses]
    n_stacked = len(body.outputs) - 1 - n_carried
    axes, joins, made = [0] * n_stacked, [collect.STACKED] * n_stacked, []
    for reader, _ in readers:
        axes.append(reader.attrs["axis"])
        is_new = reader.attrs["new_axis"]
        joins.append(collect.STACKED_ELEMENTS if is_new else collect.JOINED_ELEMENTS)
        old = reader.outputs[0]
        made.append(Value(old.name, old.fact))
        old.name = ""
        reader.graph.replace(old, made[-1])
        reader.graph.remove(reader)
    inserts = [body.outputs[1 + i].node for i in found]
    drop_carried(node, body, frozenset(found))
    for insert in inserts:
        assert insert is not None
        body.remove(insert)
    declared = (*body.declared, *(None for _ in readers))  # a join of no elements is an error
    body.set_outputs([*body.outputs, *(tensor for _, tensor in readers)], declared)
    node.graph.add_outputs(node, made)
    node.op = collect.loop
    node.attrs = {"body": body, "axes": tuple(axes), "joins": tuple(joins)}


def _appended(node: Node, body: Graph, position: int) -> Value | None:
    """What each pass puts at the end of a carried sequence, if it does only that with it."""
    initial, final = node.inputs[2 + position], node.outputs[position]
    inner, out = body.inputs[2 + position], body.outputs[1 + position]
    insert = out.node
    if initial is None or initial.op != "SequenceEmpty" or final.n_exits or not final.uses:
        return None
    if insert is None or insert.op.key != ("", "SequenceInsert") or insert.graph is not body:
        return None
    is_alone = inner.uses == [(insert, 0)] and not inner.n_exits and not out.uses
    if not is_alone or out.n_exits != 1 or optional(insert, 2) is not None:
        return None
    readers = [r for r, _ in final.uses]
    if any(r.op.key != ("", "ConcatFromSequence") or r.graph is not node.graph for r in readers):
        return None  # one in a body may never run, and must not for a sequence without elements
    tensor = given(insert, 1)
    ranks = [tensor.tensor.shape, *(r.outputs[0].tensor.shape for r in readers)]
    return None if None in ranks else tensor


RULES: Final = (*element, *joined, *content)

"""Sequence elimination: values read from sequences with known elements are read directly.

Also `collect_sequences`: a Loop that appends one element per iteration to a sequence, which is then
concatenated, stacks the elements as a scan output instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sardonyx.graph.dtype import I64
from sardonyx.graph.fact import Fact, SequenceFact
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.ops.builder import Builder
from sardonyx.ops.control import collect
from sardonyx.ops.control.standard import loop
from sardonyx.ops.inference import axis_of
from sardonyx.ops.sequence.standard import part_sizes, static_position
from sardonyx.passes.loop_invariants import drop_carried
from sardonyx.passes.rule import NoMatch, P, hole, need, present, rule

x, position = hole("x"), hole("position")


@rule(P.SequenceAt(x, position), aliases="element")
def sequence_at(b: Builder, x: Value, position: Value) -> Value:
    """Replace SequenceAt with a known position by the element; gather a slice of a split."""
    is_known = isinstance(x.fact, SequenceFact) and x.fact.parts is not None
    if x.op == "SplitToSequence" and not (is_known and position.tensor.ints):
        return _gathered_slice(b, x, position)
    elements = _elements(b, x)
    where = static_position(len(elements), position.tensor, len(elements) - 1)
    return elements[present(where, "the position is not known")]


def _gathered_slice(b: Builder, x: Value, position: Value) -> Value:
    """The slice of a SplitToSequence at a position that is computed."""
    split = present(x.node, "the sequence is an input")
    whole, keeps = input_of(split, 0), split.attrs["keepdims"]
    is_even = optional_input(split, 1) is None and whole.tensor.shape is not None
    need(is_even, "slices have several sizes")
    # A vector index keeps the axis with size 1, a scalar index removes it.
    index = b.Reshape(position, b.ints(1) if keeps else b.ints())
    return b.Gather(whole, index, axis=split.attrs["axis"])


@rule(P.ConcatFromSequence(x).named("node"), aliases="joined")
def concat_from_sequence(b: Builder, x: Value, node: Node) -> Value:
    """Replace ConcatFromSequence of known elements by Concat."""
    elements = _elements(b, x)
    need(bool(elements), "the sequence is empty")
    need(all(v.tensor.shape is not None for v in elements), "a rank is not known")
    axis = node.attrs["axis"]
    if node.attrs["new_axis"]:
        axis = axis_of(axis, elements[0].tensor.rank + 1)
        # new_axis stacks: each element gets the axis first.
        elements = [b.Unsqueeze(v, b.ints(axis)) for v in elements]
    return elements[0] if len(elements) == 1 else b.Concat(*elements, axis=axis)


@rule(P.OptionalGetElement(x), aliases="content")
def optional_get_element(b: Builder, x: Value) -> Value:
    """Replace OptionalGetElement by the value in the optional."""
    # The op also accepts values that are not optionals.
    if isinstance(x.fact, (Fact, SequenceFact)):
        return x
    node = present(x.node if x.op == "Optional" else None, "what the optional holds is not known")
    return present(optional_input(node, 0), "the optional is empty")


def _elements(b: Builder, sequence: Value) -> list[Value]:
    """The elements of a sequence, from the nodes that build it."""
    node = sequence.node
    name = sequence.op if node is not None and not node.op.domain else ""
    if node is None or not isinstance(sequence.fact, SequenceFact) or sequence.fact.parts is None:
        raise NoMatch("the number of elements is unknown")
    if name == "SequenceEmpty":
        return []
    if name == "SequenceConstruct":
        return [v for v in node.inputs if v is not None]
    if name == "SplitToSequence":
        return _split(b, node)
    if name not in ("Identity", "SequenceErase", "SequenceInsert"):
        raise NoMatch(f"the elements that {name} returns are unknown")
    # Ops that change a sequence: first the elements before, then the change.
    elements = _elements(b, input_of(node, 0))
    if name == "SequenceErase":
        del elements[_position(node, 1, len(elements), len(elements) - 1)]
    if name == "SequenceInsert":
        elements.insert(_position(node, 2, len(elements), len(elements)), input_of(node, 1))
    return elements


def _position(node: Node, slot: int, length: int, last: int) -> int:
    """The position at which an op changes a sequence; the default is the end."""
    value = optional_input(node, slot)
    where = last if value is None else static_position(length, value.tensor, last)
    return present(where, "the position is not known")


def _split(b: Builder, node: Node) -> list[Value]:
    """The elements of a SplitToSequence as outputs of a Split."""
    whole, split = input_of(node, 0), optional_input(node, 1)
    axis = axis_of(node.attrs["axis"], whole.tensor.rank)
    inferred = part_sizes(whole.tensor.dims[axis], None if split is None else split.tensor)
    sizes = present(inferred, "the number of elements is unknown")
    if not sizes:
        return []
    numbers = [s for s in sizes if isinstance(s, int)]
    operand = b.ints(*numbers) if len(numbers) == len(sizes) else split
    need(operand is not None and operand.tensor.dtype is I64, "the sizes are not int64")
    elements = b.node("Split", whole, operand, outputs=len(sizes), axis=axis).outputs
    # keepdims counts only without `split`: slices of size 1 then lose the axis.
    if node.attrs["keepdims"] or split is not None:
        return list(elements)
    return [b.Squeeze(element, b.ints(axis)) for element in elements]


def collect_sequences(graph: Graph) -> None:
    """Turn sequences that a Loop fills, one element per iteration, into scan outputs."""
    for each in list(graph.family()):
        for node in list(each.nodes):
            if node.op.key == ("", "Loop"):
                _collect(node)


def stack_sequences(graph: Graph) -> None:
    """Turn sequences that a Loop fills, and that are stacked after it, into plain scan outputs.

    For autodiff/backward.py: only those have gradients.
    """
    for each in list(graph.family()):
        for node in list(each.nodes):
            if node.op.key == ("", "Loop") and _collect(node, _stacks):
                node.op, node.attrs = loop, {"body": node.attrs["body"]}


def _stacks(reader: Node) -> bool:
    """Whether a concatenation stacks elements on axis 0, as a scan output does."""
    return bool(reader.attrs["new_axis"]) and reader.attrs["axis"] == 0


def _collect(node: Node, accepts: Callable[[Node], bool] = lambda _: True) -> bool:
    """Collect the elements of a Loop's sequences as scan outputs; return whether it has any.

    `accepts` says which concatenations of them are replaced.
    """
    body: Graph = node.attrs["body"]
    n_carried = len(node.inputs) - 2
    found = ((i, _appended(node, body, i)) for i in range(n_carried))
    appended = {
        i: v
        for i, v in found
        if v is not None and all(accepts(reader) for reader, _ in node.outputs[i].uses)
    }
    if not appended:
        return False
    # Each ConcatFromSequence after the Loop becomes an output of it.
    readers = [(r, appended[i]) for i in appended for r, _ in node.outputs[i].uses]
    n_stacked = len(body.outputs) - 1 - n_carried
    axes = (0,) * n_stacked + tuple(r.attrs["axis"] for r, _ in readers)
    join_kinds = (collect.STACKED,) * n_stacked + tuple(
        collect.STACKED_ELEMENTS if r.attrs["new_axis"] else collect.JOINED_ELEMENTS
        for r, _ in readers
    )
    results = [_replaced_by_output(r) for r, _ in readers]
    inserts = [body.outputs[1 + i].node for i in appended]
    # The sequences are carried no longer, so that nothing reads the SequenceInsert.
    drop_carried(node, body, frozenset(appended))
    for insert in inserts:
        assert insert is not None
        body.remove(insert)
    # No declared shapes: a Loop without iterations has no elements to concatenate, an error.
    declared = (*body.declared, *(None for _ in readers))
    body.set_outputs([*body.outputs, *(tensor for _, tensor in readers)], declared)
    node.graph.add_outputs(node, results)
    node.op = collect.loop
    node.attrs = {"body": body, "axes": axes, "join_kinds": join_kinds}
    return True


def _replaced_by_output(reader: Node) -> Value:
    """Replace a ConcatFromSequence by a value of its name, an output to be added to the Loop."""
    old = reader.outputs[0]
    result = Value(old.name, old.fact)
    old.name = ""
    reader.graph.replace(old, result)
    reader.graph.remove(reader)
    return result


def _appended(node: Node, body: Graph, position: int) -> Value | None:
    """The tensor that each iteration appends to a carried sequence; None if it has other uses."""
    initial, final = node.inputs[2 + position], node.outputs[position]
    inner, out = body.inputs[2 + position], body.outputs[1 + position]
    insert = out.node
    if initial is None or initial.op != "SequenceEmpty" or final.n_exits or not final.uses:
        return None
    if insert is None or insert.op.key != ("", "SequenceInsert") or insert.graph is not body:
        return None
    # The body must only append to the sequence, and only concatenations may read the result.
    is_only_appended = inner.uses == [(insert, 0)] and not inner.n_exits and not out.uses
    if not is_only_appended or out.n_exits != 1 or optional_input(insert, 2) is not None:
        return None
    readers = [r for r, _ in final.uses]
    if any(r.op.key != ("", "ConcatFromSequence") or r.graph is not node.graph for r in readers):
        return None  # a body may never run, and concatenating no elements is an error
    tensor = input_of(insert, 1)
    ranks = [tensor.tensor.shape, *(r.outputs[0].tensor.shape for r in readers)]
    return None if None in ranks else tensor


# collect_sequences is a whole-graph pass, not a rule: it changes a Loop and its body.
RULES: Final = (*sequence_at, *concat_from_sequence, *optional_get_element)

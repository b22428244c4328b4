"""Gradients of ops on sequences and optionals.

The gradient of a sequence is a sequence of as many gradients; a scalar 0 among them stands for
zeros of any shape. The gradient of an optional is that of its element.
"""

from __future__ import annotations

from sardonyx.graph.dtype import I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.ops.builder import Builder
from sardonyx.ops.gradient_rules import GradientBuilder, element_type, gradient


def _position(b: GradientBuilder, sequence: Value, position: Value | None, is_end: bool) -> Value:
    """A position as a number from 0; by default the end of the sequence, or its last element."""
    length = b.SequenceLength(sequence)
    if position is None:
        return length if is_end else b.Sub(length, 1)
    at = b.cast(b.Reshape(position, b.ints()), I64)
    return b.Where(b.Less(at, 0), b.Add(at, length), at)


@gradient("SequenceAt")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    sequence = input_of(node, 0)
    at = _position(b, sequence, input_of(node, 1), is_end=False)
    return b.SequenceInsert(b.SequenceErase(b.zeros(sequence), at), dy, at)


@gradient("SequenceConstruct")
def _(b: GradientBuilder, node: Node, dy: Value) -> list[Value | None]:
    return [
        b.full(b.SequenceAt(dy, b.const(i, I64)), x) if x is not None and b.wants(x) else None
        for i, x in enumerate(node.inputs)
    ]


@gradient("SequenceInsert")
def _(b: GradientBuilder, node: Node, dy: Value) -> tuple[Value, Value]:
    sequence, tensor = input_of(node, 0), input_of(node, 1)
    at = _position(b, sequence, optional_input(node, 2), is_end=True)
    return b.SequenceErase(dy, at), b.full(b.SequenceAt(dy, at), tensor)


@gradient("SequenceErase")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    sequence = input_of(node, 0)
    at = _position(b, sequence, optional_input(node, 1), is_end=False)
    return b.SequenceInsert(dy, b.const(0, element_type(sequence.fact)), at)


@gradient("ConcatFromSequence")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    axis = node.attrs["axis"]
    if node.attrs["new_axis"]:
        return b.SplitToSequence(dy, axis=axis, keepdims=0)
    sequence = input_of(node, 0)
    body = Graph("sizes")
    body.add_input(Value("", Fact(element_type(sequence.fact), None)))
    inner = Builder(body, body.scope)
    body.set_outputs([inner.Gather(inner.Shape(body.inputs[0]), inner.ints(axis))])
    sizes = Builder.node(b, "SequenceMap", sequence, body=body).outputs[0]
    return b.SplitToSequence(dy, b.ConcatFromSequence(sizes, axis=0), axis=axis)


@gradient("SplitToSequence")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, split = input_of(node, 0), optional_input(node, 1)
    is_squeezed = split is None and not node.attrs["keepdims"]
    # The elements in their shapes: zeros among the gradients may be scalars.
    body = Graph("full")
    fact = Fact(x.tensor.dtype, None)
    for _ in range(2):
        body.add_input(Value("", fact))
    inner = Builder(body, body.scope)
    grad, element = body.inputs
    body.set_outputs([inner.Expand(grad, inner.Shape(element))])
    elements = Builder.node(b, "SequenceMap", dy, node.outputs[0], body=body).outputs[0]
    axis, new_axis = node.attrs["axis"], int(is_squeezed)
    return b.like(b.ConcatFromSequence(elements, axis=axis, new_axis=new_axis), x)


@gradient("Optional")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return b.full(dy, input_of(node, 0))


@gradient("OptionalGetElement")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return dy

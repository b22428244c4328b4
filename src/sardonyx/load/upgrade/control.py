"""Upgrades of control flow."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


def with_declared_counter(body: Graph) -> None:
    """Let the body of a Loop read its counter and condition as vectors, if it declares them so.

    They are scalars in ONNX; onnxruntime gives them the rank that the body declares.
    """
    inputs = list(body.inputs)
    for position, value in enumerate(inputs[:2]):
        if not isinstance(value.fact, Fact) or value.fact.shape != (1,):
            continue
        scalar = Value(value.name, Fact(value.fact.dtype, ()))
        value.name = ""
        inputs[position] = scalar
        body.set_inputs(inputs)
        b = Builder(body)
        body.replace(value, b.Reshape(scalar, b.ints(1)))
    body.sort()


@UPGRADES.rule("Scan", below=9)
def batch_becomes_an_outer_scan(b: Builder, node: OldNode) -> Any:
    """Replace the batched Scan of opset 8 by a scan over the batch around a scan per sequence.

    Each sequence of the batch has its own length: the inner scan reads a slice of that length, and
    its outputs are padded with zeros to the full length.
    """
    body, count = node.attr("body"), node.attr("num_scan_inputs")
    lengths, inputs = node.required_input(0), list(node.inputs[1:])
    if not isinstance(body, Graph) or count is None or None in inputs or count > len(inputs):
        raise InvalidGraph("Scan of opset 8 needs a body, num_scan_inputs, and that many inputs")
    batch = Graph(f"{body.name}/batch")
    batch.set_inputs(Value(f"{body.name}/{i}") for i in range(len(inputs)))
    inner = Builder(batch)
    values, states = list(batch.inputs), len(inputs) - count
    length = Value(f"{body.name}/length") if lengths is not None else None
    if length is not None:
        end = inner.Unsqueeze(length, inner.ints(0))
        full = inner.Shape(values[states], end=1)
        missing = inner.Concat(inner.ints(0), inner.Sub(full, end), axis=0)
        for i in range(states, len(values)):
            values[i] = inner.Slice(values[i], inner.ints(0), end, inner.ints(0))
    attrs = {"body": body, "num_scan_inputs": count}
    attrs["scan_input_directions"] = node.attr("directions")
    outputs = list(inner.node("Scan", *values, outputs=len(body.outputs), **attrs).outputs)
    if length is not None:
        batch.add_input(length)
        for i in range(states, len(outputs)):
            outputs[i] = inner.Pad(outputs[i], missing, None, inner.ints(0))
    declared = enumerate(body.declared)
    batch.set_outputs(outputs, [d if i < states or d is None else (0, *d) for i, d in declared])
    outer = inputs if lengths is None else [*inputs, lengths]
    attrs = {"body": batch, "num_scan_inputs": len(outer)}
    return b.node("Scan", *outer, outputs=len(outputs), **attrs).outputs

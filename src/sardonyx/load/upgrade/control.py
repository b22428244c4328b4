"""Older forms of control flow."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Graph, Value
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Scan", below=9)
def batches_become_an_outer_scan(b: Builder, node: OldNode) -> Any:
    """Scan went over batches, each with a length of its own; that is a scan of scans today."""
    body, count = node.attr("body"), node.attr("num_scan_inputs")
    lengths, *given = node.given(1, ANY)
    if not isinstance(body, Graph) or count is None or None in given or count > len(given):
        raise InvalidGraph("Scan of opset 8 needs a body, num_scan_inputs, and that many inputs")
    batch = Graph(f"{body.name}/batch")
    batch.set_inputs(Value(f"{body.name}/{i}") for i in range(len(given)))
    inner = Builder(batch)
    values, states = list(batch.inputs), len(given) - count
    length = Value(f"{body.name}/length") if lengths is not None else None
    if length is not None:
        end = inner.Unsqueeze(length, inner.ints(0))
        full = inner.Shape(values[states], end=1)
        missing = inner.Concat(inner.ints(0), inner.Sub(full, end), axis=0)
        for i in range(states, len(values)):
            values[i] = inner.Slice(values[i], inner.ints(0), end, inner.ints(0))
    made = list(
        inner.node(
            "Scan",
            *values,
            outputs=len(body.outputs),
            body=body,
            num_scan_inputs=count,
            scan_input_directions=node.attr("directions"),
        ).outputs
    )
    if length is not None:
        batch.add_input(length)
        for i in range(states, len(made)):
            made[i] = inner.Pad(made[i], missing, None, inner.ints(0))
    declared = enumerate(body.declared)
    batch.set_outputs(made, [d if i < states or d is None else (0, *d) for i, d in declared])
    outer = (*given, *(() if lengths is None else (lengths,)))
    return b.node("Scan", *outer, outputs=len(made), body=batch, num_scan_inputs=len(outer)).outputs


UPGRADES: Final = (*batches_become_an_outer_scan,)

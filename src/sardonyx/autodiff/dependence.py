"""Activity analysis: which values depend on the targets, so that gradients flow back through them.

Targets are the values with respect to which a loss is differentiated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, Protocol

from sardonyx.autodiff.stops import stops_at_input, stops_at_output
from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.fact import AnyFact, Fact, OptionalFact, SequenceFact
from sardonyx.graph.graph import Graph, Node, Value

_QUANTIZING: Final = frozenset(("DynamicQuantizeLinear", "QuantizeLinear"))
# Ops that return the quantized values they read; Clip reduces their range.
_PASSING: Final = frozenset((
    "Clip", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose",
    "Unsqueeze",
))  # fmt: skip


class ActiveValues(Protocol):
    """The values that depend on a target, found by `mark_dependents`."""

    active: set[Value]  # floats or quantized values: their gradients are computed
    opaque: set[Value]  # others, such as integers


def takes_gradients(value: Value | None) -> bool:
    """Whether a value is a float tensor: a loss may be differentiated with respect to it."""
    return value is not None and isinstance(value.fact, Fact) and value.fact.dtype in FLOATS


def _has_floats(fact: AnyFact | None) -> bool:
    """Whether a value is of floats: a tensor, a sequence or an optional."""
    if isinstance(fact, (SequenceFact, OptionalFact)):
        return _has_floats(fact.elem)
    return isinstance(fact, Fact) and fact.dtype in FLOATS


def mark_dependents(
    activity: ActiveValues, nodes: Sequence[Node], targets: Collection[Value]
) -> None:
    """Mark the values that depend on a target as active (floats) or opaque (others)."""
    activity.active.update(targets)
    _mark(activity, nodes)


def _mark(activity: ActiveValues, nodes: Sequence[Node]) -> None:
    # Forward, in topological order: one pass reaches all dependents.
    for node in nodes:
        reads = differentiable_reads(activity, node)
        if not reads:
            continue
        if (flows := list(_flows(node))) and node.subgraphs:
            _mark_through_bodies(activity, node, flows)
            continue
        for index, value in enumerate(node.outputs):
            if stops_at_output(node, index):
                continue
            if _returns_quantized(node) and any(v in activity.active for _, v in reads):
                activity.active.add(value)
            else:
                _add(activity, value)


def _returns_quantized(node: Node) -> bool:
    return not node.op.domain and (node.op.name in _QUANTIZING or node.op.name in _PASSING)


def is_lost(activity: ActiveValues, node: Node, value: Value) -> bool:
    """Whether the gradient of a value that depends on a target ends at a node that reads it.

    The gradient of a quantized value (straight-through estimator) propagates only through the ops
    in `_PASSING` and DequantizeLinear.
    """
    if value in activity.opaque:
        return True
    passes = not node.op.domain and (node.op.name in _PASSING or node.op.name == "DequantizeLinear")
    return not _has_floats(value.fact) and not passes


def _add(activity: ActiveValues, value: Value) -> None:
    (activity.active if _has_floats(value.fact) else activity.opaque).add(value)


def _is_marked(activity: ActiveValues, value: Value | None) -> bool:
    return value in activity.active or value in activity.opaque


def _mark_through_bodies(
    activity: ActiveValues, node: Node, flows: Sequence[tuple[Value | None, Value]]
) -> None:
    """Mark values in the bodies of a node, and its outputs, iterating to a fixed point."""
    bodies = [body.sorted_nodes() for _, body in node.subgraphs]
    n_before = -1
    while len(activity.active) + len(activity.opaque) != n_before:
        n_before = len(activity.active) + len(activity.opaque)
        for source, value in flows:
            if _is_marked(activity, source):
                _add(activity, value)
        for inner in bodies:
            _mark(activity, inner)


def _flows(node: Node) -> Iterator[tuple[Value | None, Value]]:
    """Yield the data-flow edges across body boundaries, as pairs (source, destination)."""
    name = "" if node.op.domain else node.op.name
    if name == "If":
        for _, branch in node.subgraphs:
            yield from zip(branch.outputs, node.outputs, strict=False)
    elif name == "SequenceMap":
        body: Graph = node.attrs["body"]
        yield from zip(node.inputs, body.inputs, strict=True)
        yield from zip(body.outputs, node.outputs, strict=False)
    elif name in ("Loop", "Scan"):
        body = node.attrs["body"]
        # A Loop has trip count and condition before the carried values.
        before, results = (2, body.outputs[1:]) if name == "Loop" else (0, body.outputs)
        initial, inner = node.inputs[before:], body.inputs[before:]
        n_carried = len(initial) - (node.attrs["num_scan_inputs"] if name == "Scan" else 0)
        yield from zip(initial, inner, strict=True)
        yield from zip(results[:n_carried], inner, strict=False)
        yield from zip(initial[:n_carried], node.outputs, strict=False)  # zero iterations
        yield from zip(results, node.outputs, strict=False)


def differentiable_reads(activity: ActiveValues, node: Node) -> list[tuple[int, Value]]:
    """Return the values that a node reads and that depend on a target; slot -1: a body reads it."""
    inputs = ((i, v) for i, v in enumerate(node.inputs) if not stops_at_input(node, i))
    return [
        (slot, value)
        for slot, value in (*inputs, *((-1, v) for v in captured(node)))
        if value is not None and _is_marked(activity, value)
    ]


def captured(node: Node) -> Iterator[Value]:
    """Yield what the bodies of a node capture, constants included: they may be weights."""
    for _, body in node.subgraphs:
        yield from body.captures(constants=True)

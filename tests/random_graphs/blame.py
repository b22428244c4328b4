"""Finds the first node on which onnxruntime and the references disagree."""

from __future__ import annotations

from onnx import NodeProto

from tests.random_graphs.eager import reads
from tests.random_graphs.graph import RandomGraph
from tests.random_graphs.known import KNOWN, Known, Node
from tests.random_graphs.onnxruntime_process import OrtError, OrtProcess
from tests.random_graphs.runs import Outcome, differences, theirs


def excuse(graph: RandomGraph, wrong: dict[str, str], ort: OrtProcess) -> Outcome:
    """Goes through the nodes in order; each that differs on equal inputs must be in the table."""
    shown = [n for node in graph.nodes for n in node.output if n and n in graph.types]
    tensors = [n for n in shown if graph.types[n].HasField("tensor_type")]
    try:
        found = theirs(graph, tensors, ort, plain=True)
    except OrtError as error:
        name, text = next(iter(wrong.items()))
        return Outcome(graph.seed, "onnxruntime differs", f"{name}: {text}\nnot shown: {error}")
    off = dict(differences(graph, tensors, found))
    tainted: set[str] = set()
    reasons = []
    for node in graph.nodes:
        if tainted & set(reads(node)):
            tainted |= set(node.output)
            continue
        bad = [n for n in node.output if n in off]
        if not bad:
            continue
        known = _known_difference(graph, node)
        if known is None:
            detail = f"{node.op_type} {bad[0]}: {off[bad[0]]}"
            return Outcome(graph.seed, "onnxruntime differs", detail, reasons)
        reasons.append(f"{known.op}: {known.why}")
        tainted |= set(node.output)
    left = {n: t for n, t in wrong.items() if n not in tainted}
    if left:
        name, text = next(iter(left.items()))
        return Outcome(graph.seed, "onnxruntime differs", f"{name}: {text} (hidden)", reasons)
    return Outcome(graph.seed, "same", known=reasons)


def _known_difference(graph: RandomGraph, node: NodeProto) -> Known | None:
    domain = node.domain or ""
    for run in graph.runs:
        values = {**graph.constants, **run.feeds, **run.values}
        seen = Node(node, [values.get(n) for n in node.input], graph.opsets[domain])
        for known in KNOWN:
            if known.op == node.op_type and known.when(seen):
                return known
    return None

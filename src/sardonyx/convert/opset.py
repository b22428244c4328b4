"""Rewrites nodes that an older opset does not have."""

from __future__ import annotations

import itertools

from sardonyx.convert.inference import infer_again
from sardonyx.convert.older_ops import OLDER
from sardonyx.errors import NotImplemented
from sardonyx.graph.graph import Graph, Node
from sardonyx.graph.op import INTERNAL, ONNX
from sardonyx.load.model import Model
from sardonyx.ops.decomposition import as_outputs
from sardonyx.passes.decompose import decompose_node
from sardonyx.passes.replace import prune
from sardonyx.save.node import written
from sardonyx.save.older_forms import older_form
from sardonyx.save.since import OLDEST, Versions, opset_of

_MAX_ROUNDS = 8  # of decompositions, whose ops are decomposed again


def lower_opset(model: Model, opset: int) -> None:
    """Replace the nodes that an opset does not have by older ops; the graph must be inferred.

    Raises for an op without a decomposition, and for element types that are newer.
    """
    if opset < OLDEST[ONNX]:
        raise NotImplemented(
            f"models are written in opset {OLDEST[ONNX]} or newer, and {opset} was asked for",
            hint="onnx.version_converter has conversions to older opsets of some ops",
        )
    for _ in range(_MAX_ROUNDS):
        newer = list(_newer(model.graph, opset))
        if not newer:
            break
        for node in newer:
            if not _decomposed(node):
                raise _refused(node, opset)
        prune(model.graph)
        for graph in model.graph.family():
            graph.sort()
        infer_again(model.graph)


def _decomposed(node: Node) -> bool:
    """Replace a node by ops that can be saved; return whether its op has such a decomposition."""
    graph, rule = node.graph, node.op.decomposition
    build = OLDER.get(node.op.name) or (None if rule is None else rule.build)
    if build is None:
        return False
    before = len(graph.nodes)
    decompose_node(graph, node, lambda b, n: as_outputs(build(b, n)))
    new = itertools.islice(graph.nodes, before - 1, None)
    return node not in graph.nodes and all(n.op.domain != INTERNAL for n in new)


def _newer(graph: Graph, opset: int) -> list[Node]:
    """Return the standard nodes that need a newer opset, those of bodies included."""
    standard = (node for node in graph.all_nodes() if node.op.domain == ONNX)
    newer = (node for node in standard if opset_of(node, written(node)) > opset)
    return [node for node in newer if older_form(node, written(node), opset) is None]


def _refused(node: Node, opset: int) -> NotImplemented:
    needed = opset_of(node, written(node))
    return NotImplemented(
        f"{node.op} as it is used here needs opset {needed}, and {opset} was asked for",
        node=node,
        hint=f"ask for opset {needed} or newer",
    )


def needed_opset(model: Model, asked: int) -> int:
    """Return the lowest opset of ai.onnx from `asked` on that expresses the model's nodes."""
    versions = Versions(model.opsets, asked)
    for node in model.graph.all_nodes():
        attrs = written(node)
        versions.node(node, attrs, older_form(node, attrs, asked) is not None)
    return versions.opsets[ONNX]

"""Rewrites of the forward graph of a training step, before it is differentiated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sardonyx.autodiff.backward import DISABLED, Backward
from sardonyx.errors import NotImplemented
from sardonyx.graph.dtype import F32, FLOATS, DType
from sardonyx.graph.graph import Graph, Node, Value, input_of
from sardonyx.graph.op import GRADIENT
from sardonyx.ops.gradient_rules import ranked
from sardonyx.passes import activation, normalize
from sardonyx.passes.driver import Rewriter
from sardonyx.passes.replace import attribute_to
from sardonyx.passes.rule import by_root

# Ops that mixed precision computes in the 16-bit type, as torch.autocast does; the others need the
# range or the precision of float32, or gain nothing.
AUTOCAST_OPS: Final = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))


def batch_statistics(b: Backward, statistics: Mapping[str, Value]) -> dict[str, Value]:
    """Add batch statistics to the outputs of batch norms; return the new running statistics.

    As in torch, the running variance is unbiased (Bessel's correction), normalization uses the
    biased one, and a batch of one value per channel is an error.
    """
    _check_bodies(b.graph, statistics)
    new: dict[str, Value] = {}
    for node in b.graph.sorted_nodes():
        if not trains_statistics(node):
            continue
        names = [node.inputs[i].name for i in (3, 4) if node.inputs[i] is not None]  # type: ignore[union-attr]
        if not all(name in statistics for name in names):
            continue
        momentum = node.attrs["momentum"]
        attrs = {**node.attrs, "momentum": 0.0}
        y, mean, variance = b.node("BatchNormalization", *node.inputs, outputs=3, **attrs).outputs
        variance = _sample_variance(b, node, variance)
        outputs = [y]
        for name, now in zip(names, (mean, variance), strict=True):
            before = new.get(name, statistics[name])
            new[name] = b.Add(b.Mul(before, momentum), b.Mul(now, 1 - momentum))
            outputs.append(new[name])
        replace_node(b, node, outputs)
    return new


def trains_statistics(node: Node) -> bool:
    """Whether a node normalizes by the statistics of its batch, and updates the running ones."""
    return node.op.key == ("", "BatchNormalization") and bool(node.attrs["training_mode"])


def _check_bodies(graph: Graph, statistics: Mapping[str, Value]) -> None:
    """Raise if a batch norm in a body has running statistics, which would stay as they are."""
    for node in graph.all_nodes():
        if node.graph is graph or not trains_statistics(node):
            continue
        stored = [v for v in node.inputs[3:5] if v is not None]
        if any(v.const is not None or v.name in statistics for v in stored):
            raise NotImplemented(
                f"{node.op} in training mode is in the body of {node.graph.owner}, where its "
                "running statistics are not updated",
                node=node,
                hint="set training_mode=0, or move it out of the body",
            )


def _sample_variance(b: Backward, norm: Node, variance: Value) -> Value:
    """The variance of a sample, from that of the batch, by a node with the name of the norm."""
    ranked(input_of(norm, 0))
    op, _, attrs = b.call("SampleVariance", GRADIENT, {})
    # Named before it is inferred, where a batch that is too small is an error.
    node = b.graph.add(op, [norm.inputs[0], variance], attrs, 1, norm.name)
    b.infer(node, None)
    return node.outputs[0]


def fuse_patterns(graph: Graph) -> dict[str, set[str]]:
    """Fuse patterns of exporters whose gradients read less memory when fused.

    Return the names of nodes that are fused, each with those of the nodes that replace it.
    """
    rules = by_root((*activation.RULES, *normalize.RULES))
    rewriter = Rewriter(graph, rules, fold_limit=0, disabled=DISABLED, is_clean=True)
    rewriter.run()
    names: dict[str, set[str]] = {}
    for old in rewriter.replaced:
        work, ends = [old], set[Node]()
        while work:
            node = work.pop()
            new = rewriter.replaced.get(node)
            ends.update([node] if new is None else ())
            work.extend(new or ())
        for node in ends:
            node.name = node.name or old.name
            names.setdefault(old.name, set()).add(node.name)
    return names


def autocast(b: Backward, dtype: DType) -> None:
    """Compute float32 matmuls and convolutions in a 16-bit type."""
    for node in b.graph.sorted_nodes():
        operands = [v for v in node.inputs if v is not None]
        if node.op.domain or node.op.name not in AUTOCAST_OPS:
            continue
        if any(v.tensor.dtype is not F32 for v in operands if v.tensor.dtype in FLOATS):
            continue
        inputs = [None if v is None else b.cast(v, dtype) for v in node.inputs]
        narrow = b.node(node.op.name, *inputs, **node.attrs).outputs[0]
        replace_node(b, node, (b.cast(narrow, F32),))


def replace_node(b: Backward, node: Node, outputs: Sequence[Value]) -> None:
    """Replace a node's outputs by new values; nodes and values take their names."""
    attribute_to(b.new_nodes, node)
    b.new_nodes.clear()
    for old, new in zip(node.outputs, outputs, strict=False):
        if not new.name:
            new.name, old.name = old.name, ""
        node.graph.replace(old, new)
    node.graph.remove(node)

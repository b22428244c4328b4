"""Gradient nodes of ai.onnx.preview.training: replaced by the backward graph that they request."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.autodiff.backward import Backward, backpropagate, prepare, replace_by
from sardonyx.autodiff.dependence import takes_gradients
from sardonyx.autodiff.recompute import clone_nodes
from sardonyx.base.records import replace
from sardonyx.errors import InvalidGraph
from sardonyx.graph.copy import copied
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.load.gradient_nodes import gradient_request
from sardonyx.load.model import Model
from sardonyx.ops import family_of


def with_gradients(model: Model) -> Model:
    """Replace the Gradient nodes of a loaded model; its graph is not inferred yet."""
    if not model.has_gradient_nodes:
        return model
    prepare(model.graph)
    for graph in list(model.graph.family()):
        for node in graph.sorted_nodes():
            if node.op is gradient_request:
                _expand(node)
        _decompose_losses(graph)
    return replace(model, graph=copied(model.graph), has_gradient_nodes=False)


def _decompose_losses(graph: Graph) -> None:
    """Decompose losses, as in a gradient graph: otherwise only the reference runs them."""
    for node in graph.sorted_nodes():
        own = node.op.decomposition
        if own is not None and family_of(*node.op.key) == "loss":
            replace_by(graph, node, own, ())


def _expand(node: Node) -> None:
    """Replace one Gradient node; its inputs are n values, the n variables they replace, and y."""
    graph, n = node.graph, len(node.inputs) // 2
    inputs = [v for v in node.inputs if v is not None]
    values, variables, y = inputs[:n], inputs[n : 2 * n], inputs[2 * n]
    targets = values[: len(node.outputs)]
    for value in (y, *targets):
        if not takes_gradients(value):
            raise InvalidGraph(
                f"{value} must be f16, bf16, f32 or f64 to have a gradient", node=node
            )
    forward = _nodes_between(graph, variables, y)
    # For a gradient at other values than the variables, the nodes are copied to read these.
    copies = dict(zip(variables, values, strict=True))
    if any(new is not old for old, new in copies.items()):
        forward = clone_nodes(graph, forward, copies)
        y = copies.get(y, y)
    b = Backward(graph)
    # The seed is 1 for each element: the gradient of the sum of all elements of y.
    ones = b.expand(b.const(1, y.tensor.dtype), y)
    gradients = backpropagate(b, forward, {y: ones}, targets)
    for added in b.new_nodes:
        added.is_backward = True
        added.name = added.name or node.name
    for out, value in zip(node.outputs, targets, strict=True):
        grad = gradients[value] if value in gradients else b.zeros(value)
        if grad.node is not None and not grad.name:
            grad.name, out.name = out.name, ""
        graph.replace(out, grad)
    graph.remove(node)


def _nodes_between(graph: Graph, variables: Sequence[Value], y: Value) -> list[Node]:
    """Return the nodes on paths from the variables to `y`, in topological order."""
    # Variables are treated as independent even where a node computes them.
    depends = set(variables)
    dependent: list[Node] = []
    for node in graph.sorted_nodes():
        if not depends.isdisjoint(node.reads()) and node.op is not gradient_request:
            dependent.append(node)
            depends.update(v for v in node.outputs if v not in variables)
    # Backwards from y, among the nodes that depend on a variable.
    needed, between = {y}, []
    for node in reversed(dependent):
        if any(v in needed and v not in variables for v in node.outputs):
            between.append(node)
            needed.update(node.reads())
    return between[::-1]

"""The inference form of a model: stored statistics in BatchNormalization, no Dropout."""

from __future__ import annotations

from sardonyx.base.records import replace
from sardonyx.graph.copy import copied
from sardonyx.graph.graph import Graph, Node
from sardonyx.load.model import Model


def inference_form(model: Model) -> Model:
    """Return a copy of a model in which nodes with a training mode are in inference mode.

    A node whose further outputs are read, as running statistics that a model returns, stays.
    """
    graph = copied(model.graph)
    end_training(graph)
    return replace(model, graph=graph)


def without_loss(model: Model) -> Model:
    """Return the model as it was before losses were added to it (`add_loss`)."""
    while model.before_loss is not None:
        model = model.before_loss()
    return model


def end_training(graph: Graph) -> None:
    """Put the nodes of a graph into inference mode."""
    use_stored_statistics(graph)
    for node in list(graph.all_nodes()):
        if node.op.name == "Dropout" and _has_one_result(node):
            node.graph.replace_inputs(node, node.inputs[:1])
            _keep_first_output(node)


def use_stored_statistics(graph: Graph) -> None:
    """Make every BatchNormalization of a graph use its running statistics."""
    for node in list(graph.all_nodes()):
        if node.op.name == "BatchNormalization" and _has_one_result(node):
            node.attrs = {**node.attrs, "training_mode": 0}
            _keep_first_output(node)


def _has_one_result(node: Node) -> bool:
    return not any(value.is_used for value in node.outputs[1:])


def _keep_first_output(node: Node) -> None:
    node.graph.drop_outputs(node, set(range(1, len(node.outputs))))

"""The inference form of a trained model: stored statistics in BatchNormalization, no Dropout."""

from __future__ import annotations

from sardonyx.base.records import replace
from sardonyx.graph.copy import copied
from sardonyx.graph.graph import Node
from sardonyx.load.model import Model


def inference_form(model: Model) -> Model:
    """Return a copy of a model in which nodes with a training mode are in inference mode.

    A node whose further outputs are read, as running statistics that a model returns, stays.
    """
    graph = copied(model.graph)
    for node in list(graph.all_nodes()):
        if any(value.is_used for value in node.outputs[1:]):
            continue
        if node.op.name == "BatchNormalization":
            node.attrs = {**node.attrs, "training_mode": 0}
            _keep_first_output(node)
        elif node.op.name == "Dropout":
            node.graph.replace_inputs(node, node.inputs[:1])
            _keep_first_output(node)
    return replace(model, graph=graph)


def _keep_first_output(node: Node) -> None:
    node.graph.drop_outputs(node, set(range(1, len(node.outputs))))

"""The model file of a standalone pack: inputs, outputs, and one node for all the rest."""

from __future__ import annotations

from typing import Final

import sardonyx._native as _native
from sardonyx.graph.op import INTERNAL
from sardonyx.load.model import Model
from sardonyx.save.header import model_message
from sardonyx.save.node import node_message
from sardonyx.save.types import value_info
from sardonyx.save.wire import Message

PACKED: Final = "Packed"

# Field numbers of GraphProto.
_NODE, _NAME, _INPUT, _OUTPUT = 1, 2, 11, 12


def stub(model: Model) -> Message:
    """A model without its graph: any runtime says which op it lacks, and viewers show the rest."""
    inputs, outputs = [*model.inputs, *model.overridable], model.outputs
    graph = Message()
    names = [d.name for d in inputs], [d.name for d in outputs]
    graph.message(_NODE, node_message((INTERNAL, PACKED), "", *names))
    graph.text(_NAME, model.graph_name or "graph")
    for declared in inputs:
        graph.message(_INPUT, value_info(declared.name, declared.fact, declared.dims))
    for declared in outputs:
        graph.message(_OUTPUT, value_info(declared.name, declared.fact, declared.dims))
    return model_message(model, graph, model.ir_version, {**model.opsets, INTERNAL: 1})


def is_stub(data: memoryview) -> bool:
    """Whether bytes are the model file of a standalone pack."""
    try:
        graph = _native.decode(data).graph
    except _native.DecodeError:
        return False
    nodes = () if graph is None else graph.nodes
    return len(nodes) == 1 and (nodes[0].domain, nodes[0].op_type) == (INTERNAL, PACKED)

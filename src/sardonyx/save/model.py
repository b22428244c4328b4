"""Writes the ModelProto around a graph, and the model file of a standalone pack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import sardonyx._native as native
from sardonyx.base.protobuf_wire import Message
from sardonyx.graph.op import INTERNAL
from sardonyx.load.model import Model
from sardonyx.save.node import node_message
from sardonyx.save.tensor import entry
from sardonyx.save.types import value_info

PACKED: Final = "Packed"  # op of the only node of a standalone pack's model file

# Field numbers of ModelProto.
_IR, _PRODUCER, _PRODUCER_VERSION, _DOMAIN, _VERSION, _DOC, _GRAPH, _OPSET = range(1, 9)
_METADATA: Final = 14
# Field numbers of GraphProto.
_NODE, _NAME, _INPUT, _OUTPUT = 1, 2, 11, 12


def model_message(model: Model, graph: Message, ir: int, opsets: Mapping[str, int]) -> Message:
    """Return a ModelProto with the metadata of a model and a given graph."""
    message = Message().number(_IR, ir)
    message.text(_PRODUCER, "sardonyx").text(_PRODUCER_VERSION, native.version)
    if model.domain:
        message.text(_DOMAIN, model.domain)
    if model.version:
        message.number(_VERSION, model.version)
    if model.description:
        message.text(_DOC, model.description)
    message.message(_GRAPH, graph)
    for domain, version in sorted(opsets.items()):
        message.message(_OPSET, Message().text(1, domain).number(2, version))
    for key, value in model.metadata.items():
        message.message(_METADATA, entry(key, value))
    return message


def stub(model: Model) -> Message:
    """Return the model file of a standalone pack: its interface, and one node for the graph.

    Other runtimes report the op of the node as unknown; viewers show inputs and outputs.
    """
    inputs, outputs = [*model.inputs, *model.overridable], model.outputs
    names = [d.name for d in inputs], [d.name for d in outputs]
    graph = Message().message(_NODE, node_message((INTERNAL, PACKED), "", *names))
    graph.text(_NAME, model.graph_name or "graph")
    for field, group in ((_INPUT, inputs), (_OUTPUT, outputs)):
        for declared in group:
            graph.message(field, value_info(declared.name, declared.fact, declared.dims))
    return model_message(model, graph, model.ir_version, {**model.opsets, INTERNAL: 1})


def is_stub(data: memoryview) -> bool:
    """Return whether bytes are the model file of a standalone pack."""
    try:
        graph = native.decode(data).graph
    except native.DecodeError:
        return False
    nodes = () if graph is None else graph.nodes
    return len(nodes) == 1 and (nodes[0].domain, nodes[0].op_type) == (INTERNAL, PACKED)

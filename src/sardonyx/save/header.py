"""The message around a graph: versions, origin, and what a model says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import sardonyx._native as _native
from sardonyx.load.model import Model
from sardonyx.save.tensor import entry
from sardonyx.save.wire import Message

# Field numbers of ModelProto.
_IR, _PRODUCER, _PRODUCER_VERSION, _DOMAIN, _VERSION, _DOC, _GRAPH, _OPSET = range(1, 9)
_METADATA: Final = 14


def model_message(model: Model, graph: Message, ir: int, opsets: Mapping[str, int]) -> Message:
    """A model with this graph in the place of its own."""
    message = Message()
    message.number(_IR, ir)
    message.text(_PRODUCER, "sardonyx")
    message.text(_PRODUCER_VERSION, _native.version)
    if model.domain:
        message.text(_DOMAIN, model.domain)
    if model.version:
        message.number(_VERSION, model.version)
    if model.description:
        message.text(_DOC, model.description)
    message.message(_GRAPH, graph)
    for domain, version in sorted(opsets.items()):
        opset = Message()
        opset.text(1, domain)
        opset.number(2, version)
        message.message(_OPSET, opset)
    for key, value in model.metadata.items():
        message.message(_METADATA, entry(key, value))
    return message

"""Writes nodes and attributes as NodeProto and AttributeProto."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.protobuf_wire import Message
from sardonyx.errors import InternalError
from sardonyx.graph.graph import Attrs, Graph, Node
from sardonyx.graph.op import Attr, Op, kind_of
from sardonyx.load.attributes import BACKWARD, PRIORITY
from sardonyx.save.tensor import entry, tensor
from sardonyx.save.types import type_message

# Field numbers of NodeProto and AttributeProto.
_INPUT, _OUTPUT, _NODE_NAME, _OP, _ATTRIBUTE, _DOMAIN, _METADATA = 1, 2, 3, 4, 5, 7, 9
_NAME, _TYPE = 1, 20

# By kind: the field of the value, and AttributeProto.AttributeType.
_KINDS: Final = {
    "float": (2, 1), "int": (3, 2), "bytes": (4, 3), "tensor": (5, 4), "graph": (6, 5),
    "floats": (7, 6), "ints": (8, 7), "strings": (9, 8), "tensors": (10, 9), "type": (14, 13),
}  # fmt: skip


def node_message(
    op: tuple[str, str],
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Sequence[Message] = (),
) -> Message:
    """Return a NodeProto; trailing empty names are omitted."""
    message = Message()
    for field, names in ((_INPUT, inputs), (_OUTPUT, outputs)):
        count = max((i + 1 for i, n in enumerate(names) if n), default=0)
        for value in names[:count]:
            message.text(field, value)
    if name:
        message.text(_NODE_NAME, name)
    message.text(_OP, op[1])
    for attribute in attributes:
        message.message(_ATTRIBUTE, attribute)
    if op[0]:
        message.text(_DOMAIN, op[0])
    return message


def add_annotations(message: Message, node: Node) -> None:
    """Add the annotations of a node that affect the execution order, as metadata."""
    for key, value in ((PRIORITY, node.priority), (BACKWARD, int(node.is_backward))):
        if value:
            message.message(_METADATA, entry(key, str(value)))


def written(node: Node) -> Attrs:
    """Return the attributes of a node that differ from the op's defaults."""
    attrs: Attrs = {}
    for name, value in node.attrs.items():
        if name not in node.op.attrs:
            raise InternalError(f"{node.op} has no attribute {name} to save", node=node)
        if value is not None and not _is_default(node.op, name, value):
            attrs[name] = value
    return attrs


def defaults(node: Node) -> Attrs:
    """Return the attributes of a node that have the op's defaults, but for absent ones."""
    return {
        name: value
        for name, value in node.attrs.items()
        if value is not None and _is_default(node.op, name, value)
    }


def _is_default(op: Op, name: str, value: Any) -> bool:
    default = op.attrs[name]
    if isinstance(default, Attr):
        return False
    if isinstance(default, float):  # files store float32
        return bool(np.float32(value) == np.float32(default))
    if kind_of(default) == "floats":
        return np.array_equal(np.float32(value), np.float32(default))
    return bool(value == default)


def ints_attribute(name: str, values: Sequence[int]) -> Message:
    """Return an AttributeProto with a list of integers."""
    field, number = _KINDS["ints"]
    return Message().text(_NAME, name).numbers(field, values).number(_TYPE, number)


def attribute(op: Op, name: str, value: Any, body: Callable[[Graph], Message]) -> Message:
    """Return an AttributeProto of the declared kind; `body` writes the graph of a body."""
    kind = kind_of(op.attrs[name])
    if kind not in _KINDS:
        raise InternalError(f"attribute {name} of {op} is of kind {kind}, which cannot be saved")
    field, number = _KINDS[kind]
    message = Message().text(_NAME, name)
    match kind:
        case "float":
            message.real(field, value)
        case "int":
            message.number(field, int(value))
        case "bytes":
            message.blob(field, value)
        case "tensor":
            message.message(field, tensor(value))
        case "graph":
            message.message(field, body(value))
        case "floats":
            message.blob(field, np.asarray(value, "<f4").tobytes())
        case "ints":
            message.numbers(field, map(int, value))
        case "strings":
            for text in value:
                message.blob(field, text)
        case "tensors":
            for const in value:
                message.message(field, tensor(const))
        case "type":
            message.message(field, type_message(value))
    return message.number(_TYPE, number)

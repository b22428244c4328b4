"""Writes a document to a file or to bytes; weights are streamed from where they are."""

from __future__ import annotations

import contextlib
import os
from typing import Final

import numpy as np

from sardonyx.base.atomic_file import writing
from sardonyx.base.protobuf_wire import Message
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.graph.const import Const
from sardonyx.quantization.document import wire
from sardonyx.quantization.document.model import (
    GRAPH,
    GRAPHS,
    TENSOR,
    AttributeDoc,
    GraphDoc,
    ModelDoc,
    NodeDoc,
)
from sardonyx.save.node import node_message
from sardonyx.save.tensor import DataFile, External, content, entry, is_cheap, tensor

MAX_BYTES: Final = 2**31 - 1  # the limit of protobuf messages
MIN_EXTERNAL: Final = 1024  # bytes; smaller tensors stay in the model file
_TYPED: Final = 4096  # elements of the largest tensor that is not written as raw bytes
_GRAPH_FIELDS: Final = {GRAPH: 6, GRAPHS: 11}


def document_bytes(document: ModelDoc, file: External | None = None) -> bytes:
    """Return the document as bytes of a ModelProto; `file` takes external tensors."""
    return document_message(document, file).joined()


def save_document(
    document: ModelDoc,
    path: str | os.PathLike[str],
    external: bool = False,
    data_file: str | None = None,
    min_bytes: int = MIN_EXTERNAL,
) -> None:
    """Write a document, atomically.

    With `external`, tensors of `min_bytes` and more go to a file beside the model, by default
    `<name>.data`; so do those of a model that would be larger than protobuf allows.
    """
    target = os.path.abspath(os.fspath(path))
    if os.path.isdir(target):
        raise InvalidArgument(f"{target} is a folder", hint="name the file to save the model to")
    file = None
    message = None if external else document_message(document, None)
    if message is None or message.size > MAX_BYTES:
        file = DataFile(data_file or os.path.basename(target) + ".data", min_bytes)
        message = document_message(document, file)
    if message.size > MAX_BYTES:
        raise InvalidArgument(
            f"without its tensors of {min_bytes} bytes and more the model has {message.size} "
            f"bytes, and a model file holds at most {MAX_BYTES}",
            hint="lower the size from which tensors become external data",
        )
    try:
        with contextlib.ExitStack() as stack:
            model_file = stack.enter_context(writing(target))
            if file is not None and not file.is_empty:
                data_path = os.path.join(os.path.dirname(target), file.location)
                file.write(stack.enter_context(writing(data_path)))
            message.write(model_file)
    except OSError as error:
        raise Fail(
            f"the model could not be saved to {target}: {error.strerror or error}",
            hint="choose a folder that can be written to",
        ) from error


def document_message(document: ModelDoc, file: External | None) -> Message:
    """Return the ModelProto of a document."""
    writer = _Writer(document, file)
    message = Message().number(1, document.ir_version)
    for number, text in zip((2, 3), document.producer, strict=True):
        if text:
            message.text(number, text)
    message.message(7, writer.graph(document.graph))
    for domain, version in document.opsets.items():
        opset = Message().text(1, domain) if domain else Message()
        message.message(8, opset.number(2, version))
    for key, value in document.metadata.items():
        message.message(14, entry(key, value))
    return message.encoded(document.rest)


class _Writer:
    """Writes the graphs of one document."""

    def __init__(self, document: ModelDoc, file: External | None) -> None:
        self._file = file
        self._decode = document.decode_tensor

    def graph(self, graph: GraphDoc) -> Message:
        message = Message()
        for node in graph.nodes:
            message.message(1, self._node(node))
        message.blob(2, _encoded(graph.name))
        for name, const in graph.initializers.items():
            is_typed = name in graph.typed and const.count <= _TYPED and is_cheap(const)
            written = typed_tensor(const, name) if is_typed else tensor(const, name, self._file)
            message.message(5, written)
        for number, values in ((11, graph.inputs), (12, graph.outputs), (13, graph.values)):
            for value in values:
                message.blob(number, value.raw)
        return message.encoded(graph.rest)

    def _node(self, node: NodeDoc) -> Message:
        attributes = [self._attribute(attr) for attr in node.attrs.values()]
        op = node.domain, node.op_type
        message = node_message(op, node.name, node.inputs, node.outputs, attributes)
        return message.encoded(node.rest)

    def _attribute(self, attr: AttributeDoc) -> Message:
        number = _GRAPH_FIELDS.get(attr.type)
        if attr.type == TENSOR and (const := self._external(attr)) is not None:
            # Its file is named relative to the folder of the model that was read.
            return Message().text(1, attr.name).message(5, tensor(const)).number(20, TENSOR)
        if number is None:
            return Message().encoded(attr.raw)
        message = Message()
        for field, _, raw in wire.fields(attr.raw):
            if field != number:
                message.encoded(raw)
        for graph in attr.graphs:
            message.message(number, self.graph(graph))
        return message

    def _external(self, attr: AttributeDoc) -> Const | None:
        """Return the tensor of an attribute if it is external data."""
        is_external = any(n == 14 and v == 1 for n, v, _ in wire.fields(attr.value))
        return self._decode(attr.value) if is_external and self._decode is not None else None


def typed_tensor(const: Const, name: str) -> Message:
    """Return a TensorProto whose numbers are in the field of their type."""
    message = Message()
    if const.shape:
        message.numbers(1, const.shape)
    message.number(2, const.dtype.onnx)
    raw = b"".join(content(const).pieces())
    if const.dtype.name == "f32":
        message.blob(4, raw)
    else:
        kind = f"{'i' if const.dtype.kind == 'int' and const.dtype.bits >= 8 else 'u'}"
        codes = np.frombuffer(raw, f"{kind}{const.dtype.itemsize}")
        message.numbers(5, map(int, codes))
    return message.text(8, name)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")

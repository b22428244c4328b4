"""Messages written by hand are what protobuf reads."""

from __future__ import annotations

import io

import onnx
import pytest

from sardonyx.base.protobuf_wire import Message, Stream, varint


def written(message: Message) -> bytes:
    file = io.BytesIO()
    message.write(file)
    assert len(file.getvalue()) == message.size
    return file.getvalue()


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)])
def test_numbers(number: int) -> None:
    message = Message()
    message.text(1, "n")
    message.number(3, number)
    message.numbers(8, [number, 0, number])
    attribute = onnx.AttributeProto.FromString(written(message))
    assert attribute.i == number
    assert list(attribute.ints) == [number, 0, number]
    assert len(varint(-1)) == 10


def test_a_stream_inside_messages_is_read_only_when_written() -> None:
    calls = []

    def pieces() -> object:
        calls.append(1)
        return iter([b"ab", memoryview(b"cde")])

    tensor, graph, model = Message(), Message(), Message()
    tensor.number(2, 1)
    tensor.stream(9, Stream(5, pieces))  # type: ignore[arg-type]
    tensor.text(8, "w")
    graph.text(2, "g")
    graph.message(5, tensor)
    graph.text(10, "näher")
    model.message(7, graph)
    model.number(1, 8)
    assert not calls
    read = onnx.ModelProto.FromString(written(model))
    assert read.ir_version == 8
    assert read.graph.doc_string == "näher"
    assert read.graph.initializer[0].raw_data == b"abcde"
    assert read.graph.initializer[0].name == "w"


def test_floats() -> None:
    message = Message()
    message.real(2, 1.5)
    assert onnx.AttributeProto.FromString(written(message)).f == 1.5

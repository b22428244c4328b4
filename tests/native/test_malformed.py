"""Malformed files: errors name the field and the byte offset, and nothing crashes."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx import _native
from tests.native import models
from tests.native.wire import field, tag, varint

SMALL = field(1, 8) + field(7, field(1, field(4, b"Relu") + field(1, b"x")))


def nested_types(levels: int) -> bytes:
    """A model whose input's type is a sequence of sequences of ...; two messages per level."""
    inner = b""
    for _ in range(levels):
        inner = field(4, field(1, inner))
    return field(7, field(11, field(2, inner)))


CASES = {
    "truncated tag": (b"\x80", "the varint is cut off, in a tag of ModelProto at byte 0 of 1"),
    "truncated varint": (
        field(2, b"p") + tag(1, 0) + b"\xff\xff",
        "the varint is cut off, in ModelProto.ir_version at byte 3 of 6",
    ),
    "long varint": (
        tag(1, 0) + b"\xff" * 10 + b"\1",
        "the varint has more than 64 bits, in ModelProto.ir_version at byte 0 of 12",
    ),
    "wide varint": (
        tag(1, 0) + b"\xff" * 9 + b"\2",
        "the varint has more than 64 bits, in ModelProto.ir_version at byte 0 of 11",
    ),
    "truncated length": (
        tag(7, 2) + b"\x85",
        "the varint is cut off, in ModelProto.graph at byte 0 of 2",
    ),
    "length past the end": (
        tag(2, 2) + varint(100) + b"abc",
        "the length is 100 bytes but only 3 are left, in ModelProto.producer_name at byte 0 of 5",
    ),
    "length past the message": (
        field(7, tag(2, 2) + varint(4) + b"ab") + b"xxxx",
        "the length is 4 bytes but only 2 are left, in GraphProto.name at byte 2 of 10",
    ),
    "huge length": (
        tag(7, 2) + varint(2**64 - 1),
        f"the length is {2**64 - 1} bytes but only 0 are left, in ModelProto.graph at byte 0 of 11",
    ),
    "unknown field past the end": (
        tag(900, 2) + varint(9),
        "the length is 9 bytes but only 0 are left, in field 900 of ModelProto at byte 0 of 3",
    ),
    "truncated fixed": (
        tag(900, 5) + b"abc",
        "the length is 4 bytes but only 3 are left, in field 900 of ModelProto at byte 0 of 5",
    ),
    "group": (
        tag(3, 3) + tag(3, 4),
        "groups are not part of ONNX, in field 3 of ModelProto at byte 0 of 2",
    ),
    "wire type 7": (
        tag(3, 7),
        "the wire type 7 does not exist, in field 3 of ModelProto at byte 0 of 1",
    ),
    "field 0": (
        b"\0\0",
        "the field number 0 is out of range, in a tag of ModelProto at byte 0 of 2",
    ),
    "field number too large": (
        varint(2**35) + b"\0",
        "the field number 4294967296 is out of range, in a tag of ModelProto at byte 0 of 7",
    ),
    "scalar as bytes": (
        field(1, b"8"),
        "the wire type is bytes instead of varint, in ModelProto.ir_version at byte 0 of 3",
    ),
    "message as scalar": (
        field(7, field(1, 5)),
        "the wire type is varint instead of bytes, in GraphProto.node at byte 2 of 4",
    ),
    "float as varint": (
        field(7, field(1, field(5, field(2, 1)))),
        "the wire type is varint instead of fixed32, in AttributeProto.f at byte 6 of 8",
    ),
    "ints as fixed": (
        field(7, field(1, field(5, tag(8, 5) + b"1234"))),
        "the wire type is fixed32 instead of varint, in AttributeProto.ints at byte 6 of 11",
    ),
    "floats of 3 bytes": (
        field(7, field(5, field(4, b"123"))),
        "the packed length 3 is not a multiple of 4, in TensorProto.float_data at byte 4 of 9",
    ),
    "op type in Latin-1": (
        field(7, field(1, field(4, b"Gr\xf6\xdfe"))),
        "the string is not UTF-8, in NodeProto.op_type at byte 4 of 11",
    ),
    "location in Latin-1": (
        field(7, field(5, field(13, field(1, b"location") + field(2, b"\xf6")))),
        "the string is not UTF-8, in StringStringEntryProto.value at byte 16 of 19",
    ),
}


@pytest.mark.parametrize(("data", "said"), CASES.values(), ids=CASES)
def test_message(data: bytes, said: str) -> None:
    with pytest.raises(_native.DecodeError) as caught:
        _native.decode(data)
    assert str(caught.value) == said
    assert isinstance(caught.value, ValueError)


def test_packed_tensor_data_are_checked_when_read() -> None:
    record = _native.decode_tensor(field(8, b"w") + field(7, b"\1\2\x80"))
    with pytest.raises(_native.DecodeError) as caught:
        _ = record.values
    assert str(caught.value) == "the varint is cut off, in TensorProto.int64_data at byte 3 of 8"


def test_nesting_is_limited_to_what_protobuf_reads() -> None:
    # The graph, the input and its type are three messages; each level of types adds two.
    assert _native.decode(nested_types(48)).graph is not None
    with pytest.raises(_native.DecodeError, match="nested more than 100 deep, in TypeProto"):
        _native.decode(nested_types(49))
    with pytest.raises(_native.DecodeError, match="nested more than 100 deep, in"):
        _native.decode(nested_types(20_000))


@pytest.mark.parametrize(
    "text",
    [
        b"\x80",
        b"\xff",
        b"\xc3",
        b"\xc0\xaf",
        b"\xc1\xbf",
        b"\xe2\x82",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"abcdefgh\xe2(\xa1",
    ],
)
def test_what_is_not_utf8(text: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        text.decode()
    with pytest.raises(_native.DecodeError, match=r"not UTF-8, in ModelProto\.producer_name"):
        _native.decode(field(2, text))


@given(st.binary(max_size=24) | st.text(max_size=24).map(str.encode))
def test_utf8_is_what_python_says(text: bytes) -> None:
    try:
        expected = text.decode()
    except UnicodeDecodeError:
        with pytest.raises(_native.DecodeError):
            _native.decode(field(2, text))
    else:
        assert _native.decode(field(2, text)).producer_name == expected


# -- hostile bytes

EVERYTHING = models.everything().SerializeToString()


def read_all(record: Any, budget: list[int]) -> None:
    """Read every property of a record and of the records in it."""
    budget[0] -= 1
    if budget[0] < 0:
        return
    for name in vars(type(record)):
        if name.startswith("_"):
            continue
        value = getattr(record, name)
        for item in value if isinstance(value, list) else [value]:
            if type(item).__module__ == _native.__name__:
                read_all(item, budget)


def survives(data: bytes, decode: Callable[[bytes], Any] = _native.decode) -> None:
    """Decoding gives records that can be read, or a DecodeError."""
    with contextlib.suppress(_native.DecodeError):
        read_all(decode(data), [2000])


def test_every_truncation() -> None:
    whole = models.everything()
    del whole.graph.node[0].attribute[8:10]
    data = whole.SerializeToString()
    for length in range(len(data)):
        survives(data[:length])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(EVERYTHING) - 1), st.integers(0, 255)), max_size=8))
def test_changed_bytes(changes: list[tuple[int, int]]) -> None:
    data = bytearray(EVERYTHING)
    for position, value in changes:
        data[position] = value
    survives(bytes(data))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, len(EVERYTHING)),
    st.integers(0, 40),
    st.binary(max_size=12) | st.just(tag(7, 2)) | st.integers(0, 2**64 - 1).map(varint),
)
def test_spliced_bytes(start: int, removed: int, added: bytes) -> None:
    survives(EVERYTHING[:start] + added + EVERYTHING[start + removed :])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    survives(data)
    survives(SMALL + field(7, data))
    survives(field(7, field(1, field(5, data))))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100), st.sampled_from([4, 5, 6, 7, 9, 10, 11]))
def test_random_tensor_data(data: bytes, number: int) -> None:
    survives(field(number, data), _native.decode_tensor)

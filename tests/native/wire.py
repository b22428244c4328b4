"""Protobuf messages written by hand, so that they can be wrong."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """The shortest form; a negative number takes ten bytes, as protobuf's int64 does."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def field(number: int, value: int | bytes) -> bytes:
    """A varint field, or one of bytes with their length."""
    if isinstance(value, int):
        return tag(number, VARINT) + varint(value)
    return tag(number, BYTES) + varint(len(value)) + value


def message(*fields: tuple[int, int | bytes]) -> bytes:
    return b"".join(field(number, value) for number, value in fields)
